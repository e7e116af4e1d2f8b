"""Fine-tunes with fastai, as its vision tutorial does: one cycle, mixed precision, predictions, an exported learner."""

from fastai.vision.all import ImageDataLoaders, Resize, accuracy, aug_transforms, resnet18, vision_learner

loaders = ImageDataLoaders.from_folder(
    "image_folder", train="train", valid="val", item_tfms=Resize(128), batch_tfms=aug_transforms(), bs=16, num_workers=0
)
learner = vision_learner(loaders, resnet18, metrics=accuracy, pretrained=False).to_fp16()
learner.fine_tune(2, base_lr=2e-3)
print(learner.validate())
print(learner.get_preds()[0].shape)
learner.export("model.pkl")
