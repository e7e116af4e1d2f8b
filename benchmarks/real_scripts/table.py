"""The scripts. To add one: a row here, its packages in scripts/stacks/real-scripts.txt and, if it is in no package on
PyPI, a stand-in: a short script of our own that makes the same calls."""

from __future__ import annotations

from benchmarks.real_scripts.script import Number, Reason, Script

_ONE_RANK = {
    "RANK": "0", "LOCAL_RANK": "0", "WORLD_SIZE": "1", "MASTER_ADDR": "localhost", "MASTER_PORT": "29507",
}  # fmt: skip
_NOTHING = Reason(words="nothing was put on the GPU")

SCRIPTS: tuple[Script, ...] = (
    # --- plain PyTorch ------------------------------------------------------------------------------------------------
    Script(name="nanogpt", origin="nanoGPT train.py", command="nanogpt.py", data=("tokens",)),
    Script(
        name="nanogpt-compile", origin="nanoGPT train.py", command="nanogpt.py --compile", data=("tokens",),
        timeout_seconds=600, remark="compiles for training and for evaluation",
    ),
    Script(
        name="nanogpt-124m", origin="nanoGPT config/train_gpt2.py", gpu="a100-80gb", data=("tokens",),
        command="nanogpt.py --layers 12 --heads 12 --width 768 --block 1024 --batch 12 --accumulate 5 --eval-iters 20",
    ),
    Script(
        name="nanogpt-ddp", origin="nanoGPT train.py, DDP of one process", command="nanogpt.py --ddp", data=("tokens",),
        environment=_ONE_RANK,
    ),
    Script(
        name="nanogpt-torchrun-1", origin="nanoGPT, torchrun --nproc_per_node=1", data=("tokens",),
        command="torchrun --nproc_per_node=1 nanogpt.py --ddp",
    ),
    Script(
        name="nanogpt-torchrun-2", origin="nanoGPT, torchrun --nproc_per_node=2", data=("tokens",),
        command="torchrun --nproc_per_node=2 nanogpt.py --ddp",
    ),
    Script(name="mnist", origin="pytorch/examples mnist", command="mnist.py --epochs 1", data=("mnist",)),
    Script(name="mnist-python", origin="mnist as `python mnist.py`", command="python mnist.py", data=("mnist",)),
    Script(
        name="mnist-accelerate", origin="mnist as `accelerate launch`", command="accelerate launch mnist.py",
        data=("mnist",),
    ),
    Script(
        name="mnist-accelerate-2", origin="mnist as `accelerate launch --num_processes 2`", data=("mnist",),
        command="accelerate launch --num_processes 2 mnist.py",
    ),
    Script(
        name="word-language-model", origin="pytorch/examples word_language_model", data=("wikitext",),
        command="word_language_model.py --accel", remark="updates its parameters by hand, without an optimizer",
    ),
    Script(
        name="word-language-model-cpu", origin="the same without --accel", data=("wikitext",),
        command="word_language_model.py --epochs 1", expected=_NOTHING,
    ),
    Script(
        name="actor-critic", origin="pytorch/examples reinforcement_learning", command="actor_critic.py",
        expected=_NOTHING, remark="never uses a GPU",
    ),
    Script(
        name="word-language-model-transformer", origin="the same, --model Transformer", data=("wikitext",),
        command="word_language_model.py --accel --model Transformer",
    ),
    Script(name="mingpt-adder", origin="minGPT projects/adder", command="mingpt_adder.py"),
    Script(name="mnist-rnn", origin="pytorch/examples mnist_rnn", command="mnist_rnn.py", data=("mnist",)),
    Script(name="mnist-hogwild", origin="pytorch/examples mnist_hogwild", command="mnist_hogwild.py", data=("mnist",)),
    Script(name="vae", origin="pytorch/examples vae", command="vae.py", data=("mnist",)),
    Script(
        name="imagenet", origin="pytorch/examples imagenet --dummy", gpu="rtx-4090",
        command="imagenet.py -a resnet50 -b 32",
    ),
    Script(name="dcgan", origin="pytorch/examples dcgan --dataset fake", command="dcgan.py"),
    Script(
        name="siamese-network", origin="pytorch/examples siamese_network", command="siamese_network.py",
        data=("mnist",),
    ),
    Script(
        name="super-resolution", origin="pytorch/examples super_resolution", command="super_resolution.py",
        data=("image_folder",),
    ),
    Script(
        name="torchvision-classification", origin="torchvision references/classification", data=("image_folder",),
        command="torchvision_classification.py",
    ),
    Script(
        name="torchvision-detection", origin="torchvision references/detection", gpu="rtx-4090",
        command="torchvision_detection.py",
    ),
    Script(
        name="mae-pretrain", origin="facebookresearch/mae main_pretrain.py", command="mae_pretrain.py",
        data=("image_folder",),
    ),
    Script(
        name="dit", origin="facebookresearch/DiT train.py", gpu="a100-40gb", command="dit.py", data=("image_folder",),
        environment=_ONE_RANK,
    ),
    # --- transformers, diffusers, timm --------------------------------------------------------------------------------
    Script(
        name="run-clm", origin="transformers run_clm.py", command="hf_run_clm.py", data=("wikitext", "tokenizer"),
        expected=Number(verdict="oom", exit_code=3), remark="batch of 8 x 1024 tokens, too large for 12 GB",
    ),
    Script(
        name="run-clm-small", origin="transformers run_clm.py", data=("wikitext", "tokenizer"),
        command="hf_run_clm.py --batch-size 2 --block 256",
    ),
    Script(
        name="run-clm-no-trainer", origin="transformers run_clm_no_trainer.py", command="hf_run_clm_no_trainer.py",
        data=("wikitext", "tokenizer"),
    ),
    Script(name="run-glue", origin="transformers run_glue.py", command="hf_run_glue.py", data=("bert", "glue")),
    Script(
        name="run-glue-hub", origin="the same with a model of the hub", data=("glue",),
        command="hf_run_glue.py --model google-bert/bert-base-cased", expected=Reason(words="--online", exit_code=1),
    ),
    Script(
        name="run-image-classification", origin="transformers run_image_classification.py", data=("image_folder",),
        command="hf_run_image_classification.py",
    ),
    Script(
        name="diffusers-unconditional", origin="diffusers train_unconditional.py", gpu="rtx-3090",
        command="diffusers_unconditional.py", data=("image_folder",), remark="samples 1000 steps after each epoch",
    ),
    Script(
        name="timm-train", origin="timm train.py --amp", gpu="rtx-4090", command="timm_train.py",
        data=("image_folder",),
    ),
    Script(
        name="run-summarization", origin="transformers run_summarization.py", command="hf_seq2seq.py",
        data=("tokenizer", "glue"), remark="generates by beam search in every evaluation",
    ),
    Script(name="whisper", origin="transformers, fine-tuning Whisper", command="hf_whisper.py"),
    # --- other frameworks ---------------------------------------------------------------------------------------------
    Script(name="ignite", origin="PyTorch-Ignite, MNIST example", command="ignite_mnist.py", data=("mnist",)),
    Script(name="skorch", origin="skorch README", command="skorch_classifier.py"),
    Script(name="fastai", origin="fastai vision tutorial", command="fastai_vision.py", data=("image_folder",)),
    Script(
        name="deepspeed", origin="DeepSpeed getting started, ZeRO 2", command="deepspeed_zero.py",
        environment=_ONE_RANK,
    ),
    Script(
        name="lightning-cli", origin="LightningCLI", command="lightning_cli.py fit --trainer.max_epochs 2",
        data=("mnist",),
    ),
    Script(
        name="qlora", origin="PEFT and bitsandbytes, QLoRA", command="qlora.py", data=("llama", "wikitext"),
        gpu="rtx-4090",
    ),
    Script(name="geometric-gcn", origin="PyTorch Geometric gcn.py", command="geometric_gcn.py"),
    Script(name="geometric-batches", origin="PyTorch Geometric, graphs in batches", command="geometric_sampling.py"),
    Script(name="e3nn", origin="e3nn tutorial", command="e3nn_points.py"),
    Script(name="stable-baselines3", origin="stable-baselines3 README, PPO", command="stable_baselines3_ppo.py"),
    Script(name="monai", origin="MONAI spleen tutorial", command="monai_segmentation.py"),
    Script(
        name="kornia", origin="kornia augmentation tutorial", command="kornia_augmentation.py", data=("image_folder",)
    ),
    Script(name="smp", origin="segmentation-models-pytorch with Lightning", command="smp_segmentation.py"),
    Script(
        name="sentence-transformers", origin="sentence-transformers training overview", data=("bert", "glue"),
        command="sentence_transformers_train.py",
    ),
    Script(name="setfit", origin="SetFit README", command="setfit_train.py", data=("bert",)),
    Script(name="gpytorch", origin="GPyTorch simple regression", command="gpytorch_regression.py"),
    Script(name="pyro", origin="Pyro vae.py", command="pyro_vae.py", data=("mnist",)),
    Script(name="x-transformers", origin="x-transformers train_enwik8.py", command="x_transformers_enwik8.py",
           data=("wikitext",)),
    Script(
        name="denoising-diffusion", origin="denoising-diffusion-pytorch README", command="denoising_diffusion.py",
        data=("image_folder",), remark="samples 250 steps at each milestone",
    ),
    Script(name="tabnet", origin="pytorch-tabnet README", command="tabnet.py"),
    Script(
        name="metric-learning", origin="pytorch-metric-learning MNIST notebook", command="metric_learning.py",
        data=("mnist",),
    ),
    Script(
        name="vector-quantize", origin="vector-quantize-pytorch autoencoder.py", command="vector_quantize.py",
        data=("mnist",),
    ),
    Script(name="zuko", origin="zuko README", command="zuko_flow.py"),
    Script(name="torchrl", origin="TorchRL DQN tutorial", command="torchrl_dqn.py"),
    Script(name="botorch", origin="BoTorch README", command="botorch_loop.py"),
    Script(name="pykeen", origin="PyKEEN README", command="pykeen_pipeline.py"),
    # --- packages -----------------------------------------------------------------------------------------------------
    Script(
        name="trl-sft", origin="TRL trl/scripts/sft.py, LoRA", gpu="rtx-4090", data=("llama", "chats"),
        command="-m trl.scripts.sft --model_name_or_path llama --dataset_name chats/sft --use_peft --max_steps 20"
        " --per_device_train_batch_size 8 --output_dir out --report_to none",
    ),
    Script(
        name="trl-dpo", origin="TRL trl/scripts/dpo.py", gpu="rtx-4090", data=("llama", "chats"),
        command="-m trl.scripts.dpo --model_name_or_path llama --dataset_name chats/dpo --max_steps 20"
        " --per_device_train_batch_size 4 --output_dir out --report_to none",
    ),
    Script(
        name="yolo", origin="ultralytics `yolo detect train`", data=("boxes",),
        command="yolo detect train model=yolov8n.yaml data=boxes/boxes.yaml epochs=2 imgsz=160 batch=8 workers=2",
    ),
    Script(
        name="trl-reward", origin="TRL trl/scripts/reward.py", gpu="rtx-4090", data=("llama", "chats"),
        command="-m trl.scripts.reward --model_name_or_path llama --dataset_name chats/reward --max_steps 20"
        " --per_device_train_batch_size 4 --output_dir out --report_to none",
    ),
    Script(
        name="open-clip", origin="open_clip -m open_clip_train.main", gpu="rtx-4090",
        command="-m open_clip_train.main --dataset-type synthetic --train-num-samples 64 --batch-size 8 --epochs 1"
        " --model RN50 --workers 1 --precision amp --logs logs",
    ),
    Script(
        name="litgpt-pretrain", origin="litgpt pretrain", gpu="a100-40gb", data=("litgpt",), timeout_seconds=600,
        command="-m litgpt pretrain pythia-14m --tokenizer_dir litgpt --data TextFiles --data.train_data_path"
        " litgpt/texts --data.num_workers 1"
        " --train.max_tokens 100000 --train.micro_batch_size 2 --train.global_batch_size 4 --out_dir out",
    ),
)  # fmt: skip
