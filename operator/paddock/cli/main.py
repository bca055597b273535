# ruff: noqa: PLC0415 each command imports its own work, so that the others start fast
"""The command line `paddock`, also `kubectl paddock`."""

import os
import sys
from collections.abc import Sequence
from io import TextIOWrapper
from pathlib import Path, PurePath
from typing import Annotated

import typer
from typer.main import get_command

from paddock import __version__
from paddock.api.modeldeployment import Policy
from paddock.cli import asking
from paddock.cli.output import Backend, CacheAction, CacheName, Flash, Output, SplitMode, complain
from paddock.cli.problem import ApiError, Problem, problem_of
from paddock.cli.target import Environment, Session, Target, targeted

DEBUG = "PADDOCK_DEBUG"
"""Environment variable: any value shows tracebacks of unexpected errors."""

app = typer.Typer(
    name="paddock",
    help="GGUF models on Kubernetes: each whole on the one right GPU, for a stated reason, proven to be there.",
    pretty_exceptions_enable=False,
    context_settings={"help_option_names": ["-h", "--help"]},
    epilog="Works as `kubectl paddock` too. PADDOCK_DEBUG=1 shows tracebacks, NO_COLOR=1 no colours.",
)

Name = Annotated[str, typer.Argument(metavar="NAME", help="Name of a ModelDeployment.", show_default=False)]
Form = Annotated[Output, typer.Option("--output", "-o", metavar="|".join(Output), help="Form of the output.")]
ShortForm = Annotated[Output, typer.Option("--output", "-o", metavar="table|json|yaml", help="Form of the output.")]


@app.command()
@targeted
def devices(target: Target, output: Form = Output.TABLE) -> None:
    """List every GPU of the cluster: memory, what is reserved, who is on it."""
    from paddock.cli.devices import devices as work

    target.run(lambda session: work(session, output))


@app.command()
@targeted
def get(
    target: Target,
    name: Annotated[str | None, typer.Argument(metavar="NAME", help="Only this one.", show_default=False)] = None,
    everywhere: Annotated[bool, typer.Option("--all-namespaces", "-A", help="Those of every namespace.")] = False,
    output: Form = Output.TABLE,
) -> None:
    """List ModelDeployments: ready, on which GPU, proven, and why."""
    from paddock.cli.get import get as work

    target.run(lambda session: work(session, name, everywhere=everywhere, output=output))


File = Annotated[
    str | None,
    typer.Option(
        "--gguf",
        metavar="FILE",
        help="The model's file, or its address: then smaller contexts, caches and slots are tried, too.",
    ),
]


@app.command()
@targeted
def explain(  # noqa: PLR0913, PLR0917 each is an option
    target: Target,
    name: Name,
    replica: Annotated[
        int | None, typer.Option(min=0, metavar="N", help="Judge the GPUs for this replica, from 0.")
    ] = None,
    brief: Annotated[bool, typer.Option("--brief", help="Only the sentence that says why.")] = False,
    gguf: File = None,
    mmproj: asking.Projector = None,
    lora: asking.Adapters = None,
    draft: asking.DraftModel = None,
    output: ShortForm = Output.TABLE,
) -> None:
    """Say why a model is on its GPU, or why it has none; with the verdict on every GPU."""
    from paddock.cli.explain import explained
    from paddock.cli.headers import Files

    files = Files(gguf, mmproj, lora or (), draft)
    target.run(lambda session: explained(session, name, replica, output, brief=brief, files=files))


@app.command()
@targeted
def logs(
    target: Target,
    name: Name,
    follow: Annotated[bool, typer.Option("--follow", "-f", help="Go on as lines are written.")] = False,
    replica: Annotated[
        int | None, typer.Option(min=0, metavar="N", help="Only this replica, from 0; by default all.")
    ] = None,
    previous: Annotated[bool, typer.Option("--previous", "-p", help="Of the container that ended before.")] = False,
    tail: Annotated[int | None, typer.Option(min=0, metavar="N", help="Only so many last lines.")] = None,
) -> None:
    """Show what the servers of a model write."""
    from paddock.cli.logs import logs as work

    target.run(lambda session: work(session, name, follow=follow, replica=replica, previous=previous, tail=tail))


@app.command()
@targeted
def cache(  # noqa: PLR0913, PLR0917 one parameter for each option
    target: Target,
    action: Annotated[
        CacheAction, typer.Argument(metavar="|".join(CacheAction), help="What to do.", show_default=False)
    ],
    name: Annotated[
        str | None, typer.Argument(metavar="NAME", help="prefetch: name of a ModelDeployment.", show_default=False)
    ] = None,
    node: Annotated[
        list[str] | None, typer.Option(metavar="NODE", help="Only the cache of this node; may be repeated.")
    ] = None,
    key: Annotated[
        list[str] | None, typer.Option(metavar="KEY", help="verify, clear: only this content; may be repeated.")
    ] = None,
    select: Annotated[
        list[str] | None,
        typer.Option(metavar="LABEL=VALUE", help="prefetch: only nodes with this label; may be repeated."),
    ] = None,
    image: Annotated[
        str | None, typer.Option(metavar="IMAGE", help="Image of the pods; by default the agent's.")
    ] = None,
    timeout: Annotated[float, typer.Option(min=1, metavar="SECONDS", help="How long the pods may take.")] = 600,
    output: ShortForm = Output.TABLE,
) -> None:
    """Look after the nodes' caches of fetched models: list or verify them, clear what nothing uses, fetch beforehand.

    list, verify and clear start a short pod in the namespace on each node whose cache the namespace uses; prefetch
    writes spec.model.prefetch of a ModelDeployment, and the operator starts the pods.
    """
    from paddock.cli.cache import Asked, work

    asked = Asked(action, node or [], key or [], select or [], image, timeout)
    target.run(lambda session: work(session, asked, name, output))


@app.command()
@targeted
def chat(
    target: Target,
    name: Name,
    prompt: Annotated[
        str | None,
        typer.Argument(metavar="PROMPT", help="What to say; without it a conversation.", show_default=False),
    ] = None,
    as_json: Annotated[bool, typer.Option("--json", help="The server's whole answer.")] = False,
    max_tokens: Annotated[int, typer.Option(min=1, metavar="N", help="Longest answer, in tokens.")] = 512,
    api_key: Annotated[
        str | None,
        typer.Option(
            envvar="PADDOCK_API_KEY",
            metavar="KEY",
            help="Key that the server asks for; by default read from its Secret.",
        ),
    ] = None,
) -> None:
    """Talk to a model through the API server, by Chat Completions."""
    from paddock.cli.chat import chat as work

    target.run(lambda session: work(session, name, prompt, as_json=as_json, max_tokens=max_tokens, api_key=api_key))


@app.command()
@targeted
def restart(
    target: Target,
    name: Name,
    wait: Annotated[bool, typer.Option("--wait", help="Until every new server is Ready.")] = False,
    timeout: Annotated[float, typer.Option(min=1, metavar="SECONDS", help="Longest wait, in seconds.")] = 900,
) -> None:
    """Replace the servers of a model, one at a time."""
    from paddock.cli.restart import restart as work

    target.run(lambda session: work(session, name, wait=wait, timeout=timeout))


Fleets = Annotated[
    list[Path],
    typer.Option(
        "--fleet",
        metavar="FILE",
        help="Saved fleet: what `paddock fleet` printed, objects, or a list `gpus` of cards; may be repeated.",
    ),
]


@app.command()
@targeted
def plan(  # noqa: PLR0913, PLR0917 each is an option
    target: Target,
    files: Annotated[list[Path], typer.Option("--file", "-f", metavar="FILE", help="ModelDeployments; repeatable.")],
    fleet: Fleets = [],  # noqa: B006 typer reads it only
    need: Annotated[
        str | None,
        typer.Option(
            metavar="QUANTITY", help="Memory that a replica needs on the GPU; by default as the object's status has it."
        ),
    ] = None,
    gguf: File = None,
    mmproj: asking.Projector = None,
    lora: asking.Adapters = None,
    draft: asking.DraftModel = None,
    output: ShortForm = Output.TABLE,
) -> None:
    """Say where ModelDeployments would go now, or on a saved fleet; writes nothing."""
    from paddock.cli.headers import Files as Named
    from paddock.cli.plan import Given, plan_live, plan_saved

    given = Given(need, Named(gguf, mmproj, lora or (), draft))
    if fleet:
        plan_saved(target.environment.screen(), files, fleet, given, output)
    else:
        target.run(lambda session: plan_live(session, files, given, output))


@app.command()
@targeted
def fleet(target: Target, output: ShortForm = Output.YAML) -> None:
    """Print the fleet for `plan` and `simulate`: GPUs, nodes, PlacementPolicies and ModelDeployments."""
    from paddock.cli.plan import export

    target.run(lambda session: export(session, Output.YAML if output is Output.TABLE else output))


@app.command()
@targeted
def simulate(  # noqa: PLR0913, PLR0917 one option each
    target: Target,
    workload: Annotated[
        Path, typer.Option("--workload", metavar="FILE", help="CSV or YAML: what comes and goes when.")
    ],
    fleet: Fleets = [],  # noqa: B006 typer reads it only
    policy: Annotated[
        list[Policy], typer.Option(metavar="POLICY", help="Only these, for every model; by default each in turn.")
    ] = [],  # noqa: B006 typer reads it only
    moves: Annotated[
        int,
        typer.Option(min=0, max=2, metavar="N", help="Play each policy also with so many moves for one that waits."),
    ] = 0,
    evictions: Annotated[
        int,
        typer.Option(min=0, metavar="N", help="And with so many evictions of lower priority for one that waits."),
    ] = 0,
    svg: Annotated[Path | None, typer.Option(metavar="FILE", help="Draw memory over time per card.")] = None,
    png: Annotated[
        Path | None, typer.Option(metavar="FILE", help="The same as PNG; needs Pillow (the extra `picture`).")
    ] = None,
    output: ShortForm = Output.TABLE,
) -> None:
    """Play a workload through the operator's own placement and compare policies; writes nothing to the cluster."""
    from paddock.cli.simulate import Wish, simulate_live, simulate_saved
    from paddock.core.moves import Limits

    wish = Wish(workload, policy, Limits(moves=moves, evictions=evictions), svg, png, output)
    if fleet:
        simulate_saved(target.environment.screen(), fleet, wish)
    else:
        target.run(lambda session: simulate_live(session, wish))


@app.command()
def estimate(  # noqa: PLR0913, PLR0917 llama-server's options, one by one
    ctx: typer.Context,
    model: asking.ModelFile,
    context: asking.ContextSize = 0,
    parallel: asking.Slots = 1,
    kv_unified: asking.Unified = False,
    cache_type_k: asking.KeyType = CacheName.F16,
    cache_type_v: asking.ValueType = CacheName.F16,
    batch: asking.Batch = 2048,
    ubatch: asking.Ubatch = 512,
    flash_attn: asking.FlashAttention = Flash.AUTO,
    embeddings: asking.Embeddings = False,
    pooling: asking.Pooled = None,
    gpu_layers: asking.GpuLayers = "all",
    n_cpu_moe: asking.ExpertsOnHost = 0,
    cpu_moe: asking.AllExpertsOnHost = False,
    split_mode: asking.SplitModeName = SplitMode.LAYER,
    tensor_split: asking.Shares = None,
    override_tensor: asking.Overrides = None,
    mmproj: asking.Projector = None,
    lora: asking.Adapters = None,
    draft: asking.DraftModel = None,
    mtp: asking.Mtp = False,
    draft_tokens: asking.DraftTokens = 3,
    backend: asking.BackendName = Backend.GENERIC,
    budget: asking.Budget = None,
    bandwidth: asking.DeviceSpeed = None,
    host_bandwidth: asking.HostSpeed = None,
    measure: asking.Measure = None,
    library: asking.Library = None,
    output: ShortForm = Output.TABLE,
) -> None:
    """Say what memory a model needs, from its header alone; nothing is started, and no cluster is asked."""
    from paddock.cli.estimate import estimated
    from paddock.cli.estimating import Asked, beside_of, bytes_of
    from paddock.core.counsel import Wish
    from paddock.core.estimate import Options

    environment = ctx.obj if isinstance(ctx.obj, Environment) else Environment()
    options = Options(
        context=context,
        parallel=parallel,
        kv_unified=kv_unified,
        cache_type_k=cache_type_k.value,
        cache_type_v=cache_type_v.value,
        batch=batch,
        ubatch=ubatch,
        flash_attention=flash_attn.value,
        embeddings=embeddings or pooling is not None,
        pooling=None if pooling is None else pooling.value,
        gpu_layers=asking.layers_of(gpu_layers),
        cpu_moe=asking.MOST_LAYERS if cpu_moe else n_cpu_moe,
        shares=asking.shares_of(tensor_split, split_mode),
        split_mode=asking.DIVIDED[split_mode],
        overrides=asking.overrides_of(override_tensor),
        drafted=draft_tokens if draft or mtp else 0,
        mtp=mtp,
        backend=backend.value,
    )
    wish = Wish(
        None if budget is None else bytes_of(budget), asking.per_second(bandwidth), asking.per_second(host_bandwidth)
    )
    estimated(
        environment.screen(),
        model,
        Asked(options, wish, beside_of(mmproj, lora or (), draft), measure, library),
        output,
    )


@app.command()
@targeted
def doctor(
    target: Target,
    node: Annotated[str | None, typer.Option(metavar="NODE", help="Only what concerns this node.")] = None,
    output: ShortForm = Output.TABLE,
) -> None:
    """Check an installation: what is wrong, what it means, what to do; exit status 1 when something is wrong."""
    from paddock.cli.doctor import doctor as work

    target.run(lambda session: work(session, node, output))


@app.command()
@targeted
def top(
    target: Target,
    once: Annotated[bool, typer.Option("--once", help="Print one table and end; so without a terminal, too.")] = False,
    interval: Annotated[float, typer.Option(min=0.5, metavar="SECONDS", help="Between two looks.")] = 2.0,
    output: ShortForm = Output.TABLE,
) -> None:
    """Watch the GPUs: memory, who uses them, tokens a second of each model; Ctrl-C ends it."""
    from paddock.cli.top import top as work

    target.run(lambda session: work(session, interval, output, once=once))


@app.command()
def crds() -> None:
    """Print the CustomResourceDefinitions, for kubectl apply -f -."""
    from paddock.api.crd import crds as definitions

    sys.stdout.write("---\n".join(definitions().values()))


@app.command()
@targeted
def version(
    target: Target,
    client: Annotated[bool, typer.Option("--client", help="Do not ask the cluster.")] = False,
    output: ShortForm = Output.TABLE,
) -> None:
    """Print the versions of this program and of the operator."""
    if client:
        _client_version(output)
        return
    from paddock.cli.version import server_version, show

    async def work(session: Session) -> None:
        show(session, __version__, await server_version(session), output)

    if output is Output.TABLE:  # Whatever becomes of the question to the cluster.
        target.environment.screen().line(f"client: {__version__}")
    target.run(work)


def _client_version(output: Output) -> None:
    if output in (Output.JSON, Output.YAML):
        from paddock.cli.screen import Screen

        Screen.of_process().data({"client": {"version": __version__}}, output)
    else:
        sys.stdout.write(f"client: {__version__}\n")


def program_name(path: str) -> str:
    """Give the name by which the user calls it: kubectl starts its plug-ins as kubectl-NAME."""
    name = PurePath(path).name
    return "kubectl paddock" if name.startswith("kubectl") else "paddock"


def _completes(arguments: Sequence[str]) -> bool:
    """Tell whether completion is asked for: a shell completes programs, and `kubectl paddock` is not one."""
    return any(one.startswith(("--install-completion", "--show-completion")) for one in arguments)


def run(arguments: Sequence[str], environment: Environment | None = None, program: str = "paddock") -> int:
    """Run one command and give its exit status: 0, 1 for a problem, 2 for wrong usage, 130 when interrupted."""
    try:
        result = get_command(app).main(
            list(arguments) or ["--help"],
            prog_name="paddock" if _completes(arguments) else program,
            complete_var="_PADDOCK_COMPLETE",
            standalone_mode=False,
            obj=environment,
        )
    except Problem as problem:
        return _end(problem)
    except ApiError as error:
        return _end(problem_of(error))
    except typer.TyperException as error:
        text = error.format_message().rstrip(".").replace("Value error, ", "")
        return _end(Problem(f"{text}; see {_usage_of(error, program)} --help", error.exit_code))
    except typer.Abort:
        return _end(Problem("aborted", 130))
    except Exception as error:
        if os.environ.get(DEBUG):
            raise
        kind = type(error).__name__
        return _end(Problem(f"unexpected {kind}: {error}; run again with {DEBUG}=1 for where, and report it"))
    return result if isinstance(result, int) else 0


def _usage_of(error: typer.TyperException, program: str) -> str:
    """Give the command that was used wrongly, as the user would type it."""
    context = getattr(error, "ctx", None)
    return str(context.command_path) if context is not None else program


def _end(problem: Problem) -> int:
    complain(problem.message)
    return problem.code


def main() -> None:
    """Run the command line of this process; a character that the terminal cannot show ends nothing."""
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, TextIOWrapper):
            stream.reconfigure(errors="replace")
    sys.exit(run(sys.argv[1:], program=program_name(sys.argv[0])))


if __name__ == "__main__":
    main()
