"""After the fact: why a job ran out of memory, from its error message and from runs of its script."""

from foretell.postmortem.explain import Explanation, card_of, explain_oom, read_oom, with_script

__all__ = ["Explanation", "card_of", "explain_oom", "read_oom", "with_script"]
