"""From what a user has (a model, a script, a config, a summary) to an instant estimate."""

from foretell.guessing.answer import GuessedJob, answer, answer_all
from foretell.guessing.functions import guess

__all__ = ["GuessedJob", "answer", "answer_all", "guess"]
