"""transformers' Trainer, whose loaders Accelerate makes.

It trains as with torch's, and is resumed from its checkpoints.
"""

import accelerate.data_loader
import torch
from datasets import Dataset
from transformers import Trainer, TrainingArguments

from mpiter.torch import DataLoader

TheirLoader = accelerate.data_loader.DataLoader
LENGTH = 48
BATCH = 4
STEPS = 24


class Line(torch.nn.Module):
    def __init__(self):
        super().__init__()
        torch.manual_seed(0)
        self.layer = torch.nn.Linear(2, 1)
        self.seen = []

    def forward(self, x, y, number):
        if self.training:
            self.seen.append(number.tolist())
        return {"loss": torch.nn.functional.mse_loss(self.layer(x), y)}


def trained(loader_class, folder, resume=None):
    # What the Trainer's loaders are made of in the end.
    accelerate.data_loader.DataLoader = loader_class
    points = [[i / LENGTH, 1 - i / LENGTH] for i in range(LENGTH)]
    dataset = Dataset.from_dict(
        {"x": points, "y": [[2 * x] for x, _ in points], "number": range(LENGTH)}
    )
    arguments = TrainingArguments(
        folder,
        per_device_train_batch_size=BATCH,
        num_train_epochs=2,
        learning_rate=0.05,
        dataloader_num_workers=2,
        save_steps=17,
        logging_strategy="no",
        report_to=[],
        use_cpu=True,
        disable_tqdm=True,
        label_names=["y"],
        prediction_loss_only=True,
        seed=3,
    )
    trainer = Trainer(
        Line(),
        arguments,
        train_dataset=dataset.with_format("torch"),
        eval_dataset=dataset,
    )
    assert type(trainer.get_train_dataloader().base_dataloader) is loader_class
    trainer.train(resume_from_checkpoint=resume)
    assert trainer.evaluate()["eval_loss"] >= 0
    return trainer.model.seen, [
        weight.tolist() for weight in trainer.model.parameters()
    ]


if __name__ == "__main__":
    seen, weights = trained(TheirLoader, "theirs")
    assert len(seen) == STEPS
    assert trained(DataLoader, "ours") == (seen, weights)
    assert trained(DataLoader, "again", resume="ours/checkpoint-17") == (
        seen[17:],
        weights,
    )
