"""The trainings that are interrupted, in each rank's process.

There are ours, Lightning's and Accelerate's, each as its docs say.

All train the same: a small model of torch with Dropout, by DistributedDataParallel,
Adam, a schedule and a validation after each epoch.  Each rank draws from all three
global generators.  Each learns which samples it has learnt: a list that is saved and
loaded with the model, so that it tells what this model has seen, and not what was
thrown away.
"""

from __future__ import annotations

import hashlib
import json
import os
import random
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import torch

# Optimizers import this at their first step, which would take each rank a second.
import torch._dynamo
import torch.distributed as dist

# This comes before mpiter, so that it is found in this checkout.
from checkout import ROOT
from interrupted_ranks import (
    BETWEEN,
    BORDER,
    LAST,
    NEXT,
    SAVING,
    STEP,
    VALIDATION,
    Seat,
    Strike,
    striking_at_calls,
)
from torch.utils.data import DataLoader as TorchLoader

import mpiter.torch

assert ROOT

LENGTH = 48
VALIDATED = 12
BATCH = 4
EPOCHS = 4
EVERY_STEPS = 2
_WIDTH = 6

Vector = torch.Tensor


class Samples:
    """Sample i, and i; one of them may be the place of a strike."""

    def __init__(self, length: int, strike: Any = None) -> None:
        generator = np.random.default_rng(0)
        self.vectors = generator.random((length, _WIDTH), np.float32)
        self.strike = strike

    def __len__(self) -> int:
        return len(self.vectors)

    def __getitem__(self, index: int) -> tuple[np.ndarray[Any, Any], int]:
        if self.strike is not None and index % BATCH == 1:
            self.strike()
        return self.vectors[index], int(index)


def new_model() -> torch.nn.Module:
    return torch.nn.Sequential(
        torch.nn.Linear(_WIDTH, 16),
        torch.nn.ReLU(),
        torch.nn.Dropout(0.3),
        torch.nn.Linear(16, 1),
    )


def loss_of(model: torch.nn.Module, vectors: Vector) -> torch.Tensor:
    """Return the loss of a step, among noise of all global generators."""
    noise = random.random() + float(np.random.random())
    errors = model(vectors + 0.1 * noise) - vectors.sum(1, keepdim=True)
    return errors.square().mean()  # type: ignore[no-any-return]


def digest(*things: object) -> str:
    """Return what differs if a bit does."""
    found = hashlib.blake2b(digest_size=8)
    _feed(found, things)
    return found.hexdigest()


def _feed(found: Any, thing: Any) -> None:
    if isinstance(thing, dict):
        for name in sorted(thing, key=str):
            _feed(found, (str(name), thing[name]))
    elif isinstance(thing, (list, tuple)):
        found.update(b"(")
        for one in thing:
            _feed(found, one)
        found.update(b")")
    elif hasattr(thing, "numpy"):
        found.update(thing.detach().numpy().tobytes())
    elif isinstance(thing, np.ndarray):
        found.update(thing.tobytes())
    else:
        found.update(repr(thing).encode())


def generators() -> str:
    return digest(random.getstate(), list(np.random.get_state()), torch.get_rng_state())


def seed_as(rank: int) -> None:
    random.seed(rank)
    np.random.seed(rank)
    torch.manual_seed(rank)


def of_all_ranks(indices: torch.Tensor) -> list[int]:
    """Return the samples of this step in all ranks."""
    if not dist.is_initialized() or dist.get_world_size() == 1:
        return indices.tolist()  # type: ignore[no-any-return]
    gathered = [torch.empty_like(indices) for _ in range(dist.get_world_size())]
    dist.all_gather(gathered, indices)
    return torch.cat(gathered).tolist()  # type: ignore[no-any-return]


def note_validation(best: dict[str, Any], loss: float, epoch: int) -> None:
    best["validations"] += 1
    if loss < best["loss"]:
        best.update(loss=loss, epoch=epoch)


def at_border(seat: Seat, epoch: int, side: int) -> None:
    """Call what strikes at a border between two epochs.

    A border has two sides: the end of what follows an epoch's steps, and the beginning
    of the next epoch.
    """
    if seat.strike is not None and seat.strike.at == side:
        # The rank must come to this place so often that its count reaches the strike's.
        for _ in range(side + 1):
            seat.at(BORDER, epoch)


# -- ours ------------------------------------------------------------------------------


class Ours:
    """Trains by ``mpiter.Checkpoint``, in one file for all ranks."""

    def __init__(self, seat: Seat) -> None:
        self.seat = seat
        self.epoch = 0
        workers = seat.options.get("workers", 0)
        strike = None if workers else (lambda: seat.at(NEXT, self.epoch))
        self.loader = mpiter.torch.DataLoader(
            Samples(LENGTH, strike),
            BATCH,
            shuffle=True,
            seed=5,
            shard="auto",
            num_workers=workers,
        )
        self.model = new_model()
        # DDP may lay buckets out anew after the first step, and then adds up in another
        # order from there on. A resumed training would do so after another step.
        self.ddp = torch.nn.parallel.DistributedDataParallel(
            self.model, find_unused_parameters=True
        )
        self.optimizer = torch.optim.Adam(self.model.parameters(), 0.01)
        self.schedule = torch.optim.lr_scheduler.StepLR(self.optimizer, 1, 0.7)
        self.best: dict[str, Any] = {"loss": 1e9, "epoch": -1, "validations": 0}
        self.learnt: dict[str, list[int]] = {}

    def train(self) -> None:
        seat = self.seat
        options = self.seat.options
        checkpoint = mpiter.Checkpoint(
            seat.folder / "run.npz",
            self.loader,
            model=self.model,
            optimizer=self.optimizer,
            schedule=self.schedule,
            best=self.best,
            learnt=self.learnt,
            every_steps=options.get("every_steps", EVERY_STEPS),
            every_s=options.get("every_s"),
            keep=options.get("keep", 0),
            background=options.get("background", True),
        )
        with checkpoint as c:
            self.epoch = c.epoch
            seat.tell("start", step=c.finished, same=self._same(), own=generators())
            for epoch in c.epochs(EPOCHS):
                self.epoch = epoch
                if epoch:
                    at_border(seat, epoch - 1, side=1)
                self._learn(c, epoch)
                self._tail(epoch)
                at_border(seat, epoch, side=0)
            at_border(seat, EPOCHS - 1, side=1)
        finished = {
            "step": c.finished,
            "validations": self.best["validations"],
            "decays": self.schedule.last_epoch,
        }
        seat.tell(
            "end", same=self._same(), own=generators(), learnt=self.learnt, **finished
        )

    def _learn(self, c: mpiter.Checkpoint, epoch: int) -> None:
        by_hand = self.seat.options.get("by_hand", False)
        batches = self._struck(epoch)
        for vectors, indices in batches if by_hand else c.steps(batches):
            self.seat.at(STEP, epoch)
            self.optimizer.zero_grad()
            loss_of(self.ddp, vectors).backward()
            if epoch == EPOCHS - 1 and self.loader.is_new_epoch:
                self.seat.at(LAST, epoch)
            self.optimizer.step()
            self.learnt.setdefault(str(epoch), []).extend(of_all_ranks(indices))
            if by_hand:
                c.step()
                self.seat.tell("step", step=c.finished)
            else:
                self.seat.tell("step", step=c.finished + 1)

    def _struck(self, epoch: int) -> Iterator[Any]:
        """Yield the loader's batches without reading ahead."""
        batches = iter(self.loader)
        while True:
            self.seat.at(BETWEEN, epoch)
            try:
                batch = next(batches)
            except StopIteration:
                return
            if self.loader.num_workers:
                self.seat.at(NEXT, epoch)
            yield batch

    def _tail(self, epoch: int) -> None:
        self.schedule.step()
        self.model.eval()
        found = torch.zeros(())
        for vectors, indices in TorchLoader(Samples(VALIDATED), BATCH):
            self.seat.at(VALIDATION, epoch)
            with torch.no_grad():
                errors = (self.model(vectors) - vectors.sum(1, keepdim=True)).square()
            found += errors[indices % self.seat.size == self.seat.rank].sum()
        dist.all_reduce(found)
        self.model.train()
        note_validation(self.best, float(found), epoch)

    def _same(self) -> str:
        """Tell what all ranks must have alike."""
        return digest(
            self.model.state_dict(),
            self.optimizer.state_dict(),
            self.schedule.state_dict(),
            self.best,
            self.learnt,
        )


def by_ours(seat: Seat) -> None:
    seat.take()
    seed_as(seat.rank)
    torch.set_num_threads(1)
    store = seat.folder / f"store-{seat.run}"
    dist.init_process_group(
        "gloo", init_method=f"file://{store}", rank=seat.rank, world_size=seat.size
    )
    training = Ours(seat)
    saves = "replace" if seat.options.get("background", True) else "fsync"
    with striking_at_calls(os, saves, lambda: seat.at(SAVING, training.epoch)):
        training.train()
    dist.destroy_process_group()


# -- Lightning -------------------------------------------------------------------------


def by_lightning(seat: Seat) -> None:
    """Train with Lightning as its docs say.

    ModelCheckpoint saves within epochs and at exceptions, ckpt_path="last" resumes, and
    the loader has a state.
    """
    import lightning.pytorch as pl
    from lightning.pytorch.callbacks import ModelCheckpoint
    from torchdata.stateful_dataloader import StatefulDataLoader

    class Module(pl.LightningModule):  # type: ignore[misc]
        def __init__(self) -> None:
            super().__init__()
            self.model = new_model()
            self.learnt: dict[str, list[int]] = {}
            self.best: dict[str, Any] = {"loss": 1e9, "epoch": -1, "validations": 0}
            self.indices = torch.zeros(())
            self.found = torch.zeros(())

        def configure_optimizers(self) -> Any:
            optimizer = torch.optim.Adam(self.model.parameters(), 0.01)
            return [optimizer], [torch.optim.lr_scheduler.StepLR(optimizer, 1, 0.7)]

        def on_save_checkpoint(self, checkpoint: dict[str, Any]) -> None:
            checkpoint["ours"] = json.dumps([self.learnt, self.best])

        def on_load_checkpoint(self, checkpoint: dict[str, Any]) -> None:
            self.learnt, self.best = json.loads(checkpoint["ours"])

        def same(self) -> str:
            optimizer = self.optimizers().state_dict()
            schedule = self.lr_schedulers().state_dict()
            return digest(
                self.model.state_dict(), optimizer, schedule, self.best, self.learnt
            )

        def on_train_start(self) -> None:
            seat.tell(
                "start", step=self.global_step, same=self.same(), own=generators()
            )

        def on_train_epoch_start(self) -> None:
            if self.current_epoch:
                at_border(seat, self.current_epoch - 1, side=1)

        def training_step(self, batch: Any, number: int) -> torch.Tensor:
            vectors, self.indices = batch
            seat.at(STEP, self.current_epoch)
            if (
                self.current_epoch == EPOCHS - 1
                and number == self.trainer.num_training_batches - 1
            ):
                seat.at(LAST, self.current_epoch)
            return loss_of(self.model, vectors)

        def optimizer_step(self, *arguments: object, **options: Any) -> None:
            super().optimizer_step(*arguments, **options)
            self.learnt.setdefault(str(self.current_epoch), []).extend(
                of_all_ranks(self.indices)
            )
            seat.tell("step", step=self.global_step)

        def on_train_batch_end(self, *arguments: object) -> None:
            seat.at(BETWEEN, self.current_epoch)

        def validation_step(self, batch: Any, number: int) -> None:
            seat.at(VALIDATION, self.current_epoch)
            vectors, _ = batch
            self.found += (
                (self.model(vectors) - vectors.sum(1, keepdim=True)).square().sum()
            )

        def on_validation_epoch_end(self) -> None:
            found, self.found = self.found, torch.zeros(())
            if seat.size > 1:
                dist.all_reduce(found)
            note_validation(self.best, float(found), self.current_epoch)

        def on_train_epoch_end(self) -> None:
            at_border(seat, self.current_epoch, side=0)

        def on_train_end(self) -> None:
            at_border(seat, EPOCHS - 1, side=1)

    pl.seed_everything(5, verbose=False)
    module = Module()
    samples = Samples(LENGTH, lambda: seat.at(NEXT, module.current_epoch))
    saving = ModelCheckpoint(
        seat.folder,
        every_n_train_steps=EVERY_STEPS,
        save_last=True,
        save_on_exception=True,
    )
    quiet = {
        "logger": False,
        "enable_progress_bar": False,
        "enable_model_summary": False,
        "num_sanity_val_steps": 0,
    }
    several = {"strategy": "ddp"} if seat.size > 1 else {}
    trainer = pl.Trainer(
        accelerator="cpu",
        devices=seat.size,
        max_epochs=EPOCHS,
        callbacks=[saving],
        **several,
        **quiet,
    )
    with striking_at_calls(
        torch, "save", lambda: seat.at(SAVING, module.current_epoch)
    ):
        trainer.fit(
            module,
            StatefulDataLoader(samples, BATCH, shuffle=True),
            TorchLoader(Samples(VALIDATED), BATCH),
            ckpt_path="last",
        )
    schedule = trainer.lr_scheduler_configs[0].scheduler
    finished = {
        "step": trainer.global_step,
        "validations": module.best["validations"],
        "decays": schedule.last_epoch,
    }
    same = digest(
        module.model.state_dict(),
        trainer.optimizers[0].state_dict(),
        module.best,
        module.learnt,
    )
    seat.tell("end", same=same, own=generators(), learnt=module.learnt, **finished)


# -- Accelerate ------------------------------------------------------------------------


class _Kept:
    """What a program of Accelerate registers to be saved."""

    def __init__(self) -> None:
        self.learnt: dict[str, list[int]] = {}
        self.best: dict[str, Any] = {"loss": 1e9, "epoch": -1, "validations": 0}

    def state_dict(self) -> dict[str, Any]:
        return {"text": json.dumps([self.learnt, self.best])}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        self.learnt, self.best = json.loads(state["text"])


def by_accelerate(seat: Seat) -> None:
    """Train with Accelerate as its docs and their example say.

    save_state() comes every few steps; resuming is load_state() and
    skip_first_batches().
    """
    from accelerate import Accelerator, DataLoaderConfiguration
    from accelerate.utils import set_seed

    now = [0]
    accelerator = Accelerator(
        cpu=True, dataloader_config=DataLoaderConfiguration(use_seedable_sampler=True)
    )
    set_seed(5)
    samples = Samples(LENGTH, lambda: seat.at(NEXT, now[0]))
    plain = new_model()
    kept = _Kept()
    adam = torch.optim.Adam(plain.parameters(), 0.01)
    schedule = torch.optim.lr_scheduler.StepLR(adam, 1, 0.7)
    model, optimizer, loader = accelerator.prepare(
        plain, adam, TorchLoader(samples, BATCH, shuffle=True)
    )
    accelerator.register_for_checkpointing(schedule, kept)
    saved = sorted(seat.folder.glob("step_*"), key=os.path.getctime)
    overall = 0
    if saved:
        accelerator.load_state(str(saved[-1]))
        overall = int(saved[-1].name.removeprefix("step_"))

    def same() -> str:
        return digest(
            plain.state_dict(),
            adam.state_dict(),
            schedule.state_dict(),
            kept.best,
            kept.learnt,
        )

    seat.tell("start", step=overall, same=same(), own=generators())
    first_epoch, skipped = divmod(overall, len(loader))
    with striking_at_calls(torch, "save", lambda: seat.at(SAVING, now[0])):
        for epoch in range(first_epoch, EPOCHS):
            now[0] = epoch
            if epoch:
                at_border(seat, epoch - 1, side=1)
            loader.set_epoch(epoch)
            batches = loader
            if epoch == first_epoch and skipped:
                batches = accelerator.skip_first_batches(loader, skipped)
            for vectors, indices in batches:
                seat.at(STEP, epoch)
                optimizer.zero_grad()
                accelerator.backward(loss_of(model, vectors))
                if overall + 1 == EPOCHS * len(loader):
                    seat.at(LAST, epoch)
                optimizer.step()
                kept.learnt.setdefault(str(epoch), []).extend(of_all_ranks(indices))
                overall += 1
                seat.tell("step", step=overall)
                if overall % EVERY_STEPS == 0:
                    accelerator.save_state(str(seat.folder / f"step_{overall}"))
                seat.at(BETWEEN, epoch)
            schedule.step()
            found = torch.zeros(())
            for vectors, _ in TorchLoader(Samples(VALIDATED), BATCH):
                seat.at(VALIDATION, epoch)
                with torch.no_grad():
                    found += (
                        (plain(vectors) - vectors.sum(1, keepdim=True)).square().sum()
                    )
            note_validation(kept.best, float(accelerator.reduce(found)), epoch)
            at_border(seat, epoch, side=0)
        at_border(seat, EPOCHS - 1, side=1)
    finished = {
        "step": overall,
        "validations": kept.best["validations"],
        "decays": schedule.last_epoch,
    }
    seat.tell("end", same=same(), own=generators(), learnt=kept.learnt, **finished)
    accelerator.end_training()


TRAININGS: dict[str, Callable[[Seat], None]] = {
    "mpiter": by_ours,
    "lightning": by_lightning,
    "accelerate": by_accelerate,
}


def seat_as_told(text: str) -> Seat:
    """Return the seat that torch's launcher has started this process for."""
    told = json.loads(text)
    strike = Strike(**told["strike"]) if told["strike"] else None
    rank = int(os.environ["RANK"])
    size = int(os.environ["WORLD_SIZE"])
    return Seat(
        Path(told["folder"]),
        told["run"],
        rank,
        size,
        strike,
        told["options"],
        os.getppid(),
    )


if __name__ == "__main__":
    TRAININGS[sys.argv[1]](seat_as_told(sys.argv[2]))
