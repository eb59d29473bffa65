"""The training loop, top to bottom: prepare or resume, step, evaluate, log, save, finish."""

import time
from collections.abc import Callable
from functools import partial
from itertools import islice
from typing import Any, get_args

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.nn.utils.parametrize import cached

from lowcurve import checks
from lowcurve.data import Dataset, Split
from lowcurve.data.loader import batches
from lowcurve.errors import UserError
from lowcurve.factory import Factory, check_factory
from lowcurve.files import write_json
from lowcurve.methods import columns
from lowcurve.progress import bars
from lowcurve.random import generator
from lowcurve.training.average import WeightAverage
from lowcurve.training.batch import in_pieces, varied
from lowcurve.training.card import finish
from lowcurve.training.checkpoint import latest_checkpoint
from lowcurve.training.compiled import CompiledStep
from lowcurve.training.config import Config
from lowcurve.training.distributed import World, naming_losses, processes
from lowcurve.training.interrupt import StopRequest, stop_requests
from lowcurve.training.log import Log, Meter, constants
from lowcurve.training.machine import flushed_denormals, given_threads, kept_memory
from lowcurve.training.network import keep_source, make_network, start_from
from lowcurve.training.optimizer import learning_rate, make_optimizer
from lowcurve.training.runs import Run, run_environment
from lowcurve.training.session import Session
from lowcurve.training.smoothing import Ceilings, coefficients, train_only_smoothness
from lowcurve.training.start import Resume, hold_folder
from lowcurve.training.step import TrainingStep
from lowcurve.training.sync import synchronize

READ_EVERY = 50  # steps between readings of the loss where each waits for a GPU or for other processes
AGREE_EVERY = 10  # steps between two agreements of several processes on whether to save or stop


def train(config: Config, resume: Resume = "never", factory: Factory | None = None) -> Run:
    """Train what `config` says in its folder; with `resume` "auto" go on where an earlier call was stopped.

    A run that was killed at any moment and resumed ends with the same bits as one that was not, on the same
    machine, number of threads and processes. A finished run is returned as it is. `config` may name a function of
    yours for the network (`model.from`); one that the files of another run name is not run: pass it as `factory`.
    """
    if not isinstance(config, Config):
        raise UserError(f"expected a Config, got {checks.shown(config)}; read_config makes one of a recipe")
    checks.choice(get_args(Resume), resume=resume)
    check_factory(factory)
    with (
        processes(config.train.device) as world,
        stop_requests() as request,  # torchrun stops the others when one is lost: they say so first
        naming_losses(world),
        hold_folder(config, resume, world, factory) as run,
    ):
        if run.finished:
            return run
        devices = [world.device] if world.device.type == "cuda" else []
        with torch.random.fork_rng(devices=devices), flushed_denormals(), kept_memory(), given_threads():
            _train(_prepare(config, world, run), request)
        world.wait()
        return run


def _prepare(config: Config, world: World, run: Run) -> Session:
    """Load the data, make the network and the optimizer, and take them to the newest checkpoint."""
    dataset = config.samples()
    checkpoint = latest_checkpoint(run.folder / "checkpoints")
    world.wait()  # the first process writes below
    model = _network(config, world, run, dataset, resumed=checkpoint is not None)
    average = WeightAverage(model, config.train.ema) if config.train.ema else None
    if config.train.sync_batchnorm and world.size > 1:
        model = synchronize(model)
    method, optimizer = config.method.method, make_optimizer(model, config.train)
    session = Session(
        config,
        world,
        run,
        dataset,
        model,
        _training_step(config, world, model, len(dataset.train)),
        optimizer,
        Meter(columns(method), world.device),
        Ceilings(model, config),
        average,
    )
    if checkpoint:
        session.restore(checkpoint)
    elif config.model.source and world.first:
        keep_source(config.model.source, run.folder)
    if world.first:
        write_json(run.folder / "environment.json", run_environment(run, dataset, world.size))
    if not checkpoint:
        session.save()  # a full disk or a wrong folder shows now, not after the first hour
    return session


def _training_step(config: Config, world: World, model: nn.Module, samples: int) -> TrainingStep | CompiledStep:
    """Return the method's step: of several processes together, or compiled, with gradients averaged afterwards."""
    settings = config.train
    given = (config.method.method, coefficients(config, samples), getattr(torch, settings.precision))
    if not settings.compile:
        return TrainingStep(world.wrap(model), *given)
    step = TrainingStep(model, *given)
    if world.size > 1 and (settings.sync_batchnorm or any(term.own_backward for term in step.terms.values())):
        raise UserError(
            "a step in which processes wait for each other (train.sync_batchnorm, method.gradient='finite') cannot be "
            "compiled; leave train.compile out"
        )
    return CompiledStep(step)


def _network(config: Config, world: World, run: Run, dataset: Dataset, resumed: bool) -> nn.Module:
    """Make the network, with weights of the seed, of `model.from`, or to be filled from a checkpoint."""
    torch.manual_seed(config.train.seed)
    shape = dataset.input_size, dataset.num_classes
    if config.model.source is None or resumed:
        model = make_network(config, *shape, run.folder, run.factory)
    else:
        model = start_from(config, *shape, run.factory)
    model = model.to(world.device).train()
    if config.train.channels_last and len(dataset.input_size) == 3:
        model = model.to(memory_format=torch.channels_last)  # type: ignore[call-overload]
    if config.train.only == "smoothness":
        train_only_smoothness(model)
    return model


def _train(session: Session, request: StopRequest) -> None:
    settings = session.config.train
    log = Log(session.run.folder, session.epoch, session.config.data.judged, session.world.first)
    with bars() as display:
        total = settings.epochs * len(session.loader())
        show = partial(display.update, display.add_task(session.config.run_name, total=total, note=""))
        while session.epoch < settings.epochs:
            speed = _train_epoch(session, request, show)
            row = _row(session, speed)
            session.epoch, session.step = session.epoch + 1, 0
            session.meter.sums.zero_()
            log.write(row)
    log.close()
    if session.world.first:
        finish(session.run, session.result, log.rows, session.seconds)


def _train_epoch(session: Session, request: StopRequest, show: Callable[..., None]) -> float:
    """Train to the end of the epoch; return images per second of all processes."""
    world, loader, samples = session.world, session.loader(), 0
    reads = 1 if world.size == 1 and world.device.type == "cpu" else READ_EVERY
    started = clock = time.monotonic()
    for x, y in islice(loader, session.step, None):
        done = session.epoch * len(loader) + session.step
        _step(session, x, y, done, session.config.train.epochs * len(loader))
        session.step += 1
        samples += len(y) * world.size
        session.seconds, clock = session.seconds + time.monotonic() - clock, time.monotonic()
        show(completed=done + 1)
        if (done + 1) % reads == 0:
            means = session.read()
            rates = [f"{samples / (clock - started):.0f} images/s"]
            rates += [f"{name} {mean:.3g}" for name, mean in means.items() if name != "loss"]
            show(note=f"loss {means['loss']:.3g}", below="  ".join(rates))
        _save_or_stop(session, request, done + 1)
    session.read()
    return samples / max(time.monotonic() - started, 1e-9)


def _step(session: Session, x: Tensor, y: Tensor, done: int, total: int) -> None:
    """Take step number `done` of `total`; its noise depends on the seed, its number and the process alone."""
    settings = session.config.train
    for group in session.optimizer.param_groups:
        group["lr"] = learning_rate(settings, done / total)
    torch.manual_seed(generator(settings.seed, done, session.world.rank).initial_seed())
    if settings.channels_last and x.ndim == 4:
        x = x.contiguous(memory_format=torch.channels_last)
    x, targets = varied(x, y, session.dataset.num_classes, settings)
    terms = session.last = in_pieces(session.training_step, x, y, targets, settings.accumulate)
    if settings.compile:
        session.world.average_gradients(session.model)
    if settings.clip_gradient is not None:
        nn.utils.clip_grad_norm_(session.model.parameters(), settings.clip_gradient)
    session.optimizer.step()
    session.ceilings.lower(done / total)
    session.world.average_statistics(session.model)
    if session.average is not None:
        session.average.update(session.model, done)
    session.meter.add(terms, len(y))


def _save_or_stop(session: Session, request: StopRequest, done: int) -> None:
    """Save where it is time to or a signal has come, and obey the signal; `done` counts steps from the start."""
    world = session.world
    if world.size > 1 and done % AGREE_EVERY:
        return
    stop = world.any(request.signal is not None)
    if stop or world.any(time.monotonic() - session.saved >= session.config.train.checkpoint_seconds):
        session.read()
        session.save()
    if stop:
        request.obey()


def _row(session: Session, speed: float) -> dict[str, Any]:
    """Return what is logged of an epoch."""
    settings = session.config.train
    means = session.meter.means(session.world.total(session.meter.sums))
    row = {"epoch": session.epoch, "lr": session.optimizer.param_groups[0]["lr"], "images_per_second": speed}
    row |= {"train_accuracy" if name == "accuracy" else name: mean for name, mean in means.items()}
    last = session.epoch + 1 == settings.epochs
    if last or (session.epoch + 1) % settings.evaluate_every == 0:
        row["test_accuracy"], row["test_loss"] = accuracy_and_loss(session.result, session.dataset.test, session.world)
    return row | constants(session.result)


def accuracy_and_loss(
    model: nn.Module, split: Split, world: World | None = None, batch_size: int = 500
) -> tuple[float, float]:
    """Return accuracy and mean cross-entropy over `split` in eval mode; the model's mode is restored."""
    device = next(model.parameters()).device
    world = world or World(0, 1, device)
    training = model.training
    sums = torch.zeros(2, dtype=torch.float64, device=device)
    loader = batches(
        split, batch_size, seed=0, epoch=0, shuffle=False, rank=world.rank, world=world.size, device=device
    )
    model.eval()
    with torch.no_grad(), cached():
        for x, y in loader:
            sums += _hits_and_loss(model(x), y)
    model.train(training)
    hits, loss = (world.total(sums) / len(split)).tolist()
    return hits, loss


def _hits_and_loss(logits: Tensor, y: Tensor) -> Tensor:
    hits = (logits.argmax(1) == y).sum()
    return torch.stack([hits.double(), F.cross_entropy(logits, y, reduction="sum").double()])
