"""Models from web servers of this machine on real nodes: read, placed, fetched once for each node, served, told."""

import ipaddress
import json
import os
import shutil
import signal
import ssl
import threading
from collections.abc import Callable, Iterator
from contextlib import ExitStack, suppress
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Self

import pytest
from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.x509.oid import NameOID

from cluster.settings import CONTROL_PLANE_IP, Programs, cache_folder
from e2e import api, installation, kit
from support import companion_writer, fetch_site, stores
from support.cluster import (
    GTX_1060,
    RTX_4080,
    RTX_PRO_6000,
    apply,
    eventually,
    kubectl,
    models_folder,
    node_down,
    node_up,
)
from support.gguf_writer import Model

pytestmark = pytest.mark.e2e
CACHE = "/var/lib/paddock/models/e2e-cache"
"""Inside the one folder that each node has for itself on this machine."""
TOKEN = "hf_not_a_secret_of_anybody"
LIMIT = 2 * 1024**3


@dataclass
class Web:
    """A web server that plays a hub and an Ollama registry, too; one that nobody trusts; a real registry; real S3."""

    site: fetch_site.Site
    stranger: fetch_site.Site
    registry: stores.Registry
    s3: str | None
    """None when the program was not built yet."""
    bucket: Path
    """Where that server keeps what lies in `models`."""
    folder: Path

    def offer(self, author: str) -> tuple[str, Path]:
        """Give the address of a new model, and its file."""
        file = self.folder / f"{author}.gguf"
        kit.write_tiny(file, author=author)
        for one in (self.site, self.stranger):
            one.files[f"/{file.name}"] = file
        return f"{self.site.address}/{file.name}", file


def certificate(folder: Path) -> ssl.SSLContext:
    """Make a certificate for this machine's address that is its own authority."""
    key = ec.generate_private_key(ec.SECP256R1())
    name = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, "a private authority")])
    now, address = datetime.now(UTC), ipaddress.ip_address(CONTROL_PLANE_IP)
    made = (
        x509.CertificateBuilder()
        .subject_name(name)
        .issuer_name(name)
        .public_key(key.public_key())
        .serial_number(x509.random_serial_number())
        .not_valid_before(now - timedelta(hours=1))
        .not_valid_after(now + timedelta(hours=2))
        .add_extension(x509.SubjectAlternativeName([x509.IPAddress(address)]), critical=False)
        .add_extension(x509.BasicConstraints(ca=True, path_length=None), critical=True)
        .sign(key, hashes.SHA256())
    )
    pem = serialization.Encoding.PEM
    (folder / "tls.crt").write_bytes(made.public_bytes(pem))
    (folder / "tls.key").write_bytes(
        key.private_bytes(pem, serialization.PrivateFormat.PKCS8, serialization.NoEncryption())
    )
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(folder / "tls.crt", folder / "tls.key")
    return context


@pytest.fixture(scope="module")
def web(cluster: None, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Web]:  # noqa: ARG001 must be up
    """Serve, and have the chart told of the cache, the certificate and the hub."""
    folder, other = tmp_path_factory.mktemp("web"), tmp_path_factory.mktemp("other")
    for node in kit.NODES:
        shutil.rmtree(models_folder(node) / "e2e-cache", ignore_errors=True)
    with ExitStack() as stack:
        site = stack.enter_context(fetch_site.site(certificate(folder), CONTROL_PLANE_IP))
        stranger = stack.enter_context(fetch_site.site(certificate(other), CONTROL_PLANE_IP))
        registry = stack.enter_context(stores.registry(tmp_path_factory.mktemp("registry"), CONTROL_PLANE_IP))
        # Compiling it takes longer than these tests: `make test` has it from the tests of the fetcher.
        there = Programs(cache_folder()).s3.is_file()
        folder_s3 = tmp_path_factory.mktemp("s3")
        s3 = stack.enter_context(stores.s3(folder_s3, "models", CONTROL_PLANE_IP)) if there else None
        values = {
            "modelCache": {"hostPath": CACHE, "size": "2Gi"},
            "imageVolumes": True,
            "fetch": {
                "caBundle": (folder / "tls.crt").read_text(),
                "hub": site.address,
                "ollama": site.address,
                "mirrors": {"registry.example": f"http://{registry.host}"},
                "env": {"PADDOCK_FETCH_PATIENCE": "5", "PADDOCK_FETCH_PLAIN_HTTP": "true"},
            },
        }
        installation.upgrade(values=values)
        installation.wait_listed()
        yield Web(site, stranger, registry, s3, folder_s3 / "data" / "models", folder)
    installation.upgrade()
    installation.wait_listed()


def remote(name: str, source: str, *devices: api.Object, **more: object) -> api.Object:
    """Give a deployment of a model that is fetched; `more` is of spec.model."""
    return kit.deployment(name, *devices, model={"source": source, **more})


def give_secret(namespace: str, name: str, **values: str) -> None:
    """Make a Secret."""
    secret = {"apiVersion": "v1", "kind": "Secret", "metadata": {"name": name, "namespace": namespace}}
    apply(secret | {"stringData": values})


def fetched(namespace: str, pod: str) -> int:
    """Give the bytes that came over the network for a pod; nothing where it has no container that fetches."""
    spec = kit.named("pods", namespace, pod)["spec"]
    if "initContainers" not in spec:
        assert [one["name"] for one in spec["containers"]] == ["server", "hold"]
        return 0
    lines = kubectl("logs", "-n", namespace, pod, "-c", "fetch").splitlines()
    (done,) = (one for line in lines if (one := json.loads(line))["event"] == "done")
    return int(done["fetched"])


def answers(namespace: str, name: str) -> None:
    """Ask the model something."""
    status, said = kit.chat(kit.address_of(namespace, name))
    assert (status, said["usage"]["completion_tokens"] > 0) == (200, True), said


def test_from_a_web_server_to_an_answered_chat_and_again_without_a_byte(namespace: str, web: Web) -> None:
    source, file = web.offer("https")
    size = file.stat().st_size
    kit.put(namespace, remote("web", source, {"uuid": RTX_4080}, sha256=fetch_site.sha256(file)))
    one = kit.wait_available(namespace, "web")["web"]
    answers(namespace, "web")
    model = one["status"]["model"]
    assert (model["architecture"], model["sizeBytes"], model["files"]) == ("llama", size, 1)
    (first,) = kit.pods(namespace)
    assert fetched(namespace, first["metadata"]["name"]) == size
    server = first["spec"]["containers"][0]
    assert [mount["name"] for mount in server["volumeMounts"] if not mount.get("readOnly")] == ["tmp", "cuda-cache"]

    eventually("the agent tells of the files", lambda: kit.mdep(namespace, "web")["status"]["model"].get("nodes"), 60)
    web.site.behaviour = lambda handler: handler.status(503) or True  # the network is cut, as far as models go
    try:
        kit.run("paddock", "restart", "web", "-n", namespace, "--wait", "--timeout", "60")
        kubectl("patch", "mdep", "web", "-n", namespace, "--type=merge", "-p", '{"spec":{"replicas":2}}')
        kit.wait_available(namespace, "web")
    finally:
        web.site.behaviour = lambda _: False
    pods = [pod["metadata"]["name"] for pod in kit.pods(namespace) if "deletionTimestamp" not in pod["metadata"]]
    assert len(pods) == 2
    assert [fetched(namespace, pod) for pod in pods] == [0, 0]
    answers(namespace, "web")
    listed = kit.run("paddock", "cache", "list", "-n", namespace).stdout
    assert model["key"] in listed
    assert "is whole" in kit.run("paddock", "cache", "verify", "-n", namespace, "--key", model["key"]).stdout
    kit.run("paddock", "cache", "clear", "-n", namespace, "--key", model["key"])
    assert model["key"] in kit.run("paddock", "cache", "list", "-n", namespace).stdout, "what is in use stays"


def test_from_a_hub_that_asks_for_a_token(namespace: str, web: Web) -> None:
    _, file = web.offer("hub")
    fetch_site.add_repository(web.site, "org/tiny", {"tiny-Q8_0.gguf": file})

    def guarded(handler: fetch_site.Handler) -> bool:
        asked = "/org/tiny/" in handler.path and "/cdn/" not in handler.path
        if asked and handler.headers.get("Authorization") != f"Bearer {TOKEN}":
            handler.status(401)
            return True
        return False

    web.site.behaviour = guarded
    kit.put(namespace, remote("hub", "hf://org/tiny:Q8_0", {"uuid": RTX_PRO_6000}, secretRef={"name": "hub"}))
    refused = kit.wait_condition(namespace, "hub", "Accepted", "False", "Unauthorized")
    assert refused["message"]
    give_secret(namespace, "token", token=TOKEN)
    kubectl(
        "patch",
        "mdep",
        "hub",
        "-n",
        namespace,
        "--type=merge",
        "-p",
        '{"spec":{"model":{"secretRef":{"name":"token"}}}}',
    )
    one = kit.wait_available(namespace, "hub")["hub"]
    web.site.behaviour = lambda _: False
    answers(namespace, "hub")
    model = one["status"]["model"]
    assert model["pinned"] == f"hf://org/tiny@{fetch_site.COMMIT}/tiny-Q8_0.gguf"
    assert model["license"] == "gemma"
    assert model["digest"] == f"sha256:{fetch_site.sha256(file)}"
    (pod,) = kit.pods(namespace)
    seen = json.dumps([one, pod]) + kubectl("logs", "-n", namespace, pod["metadata"]["name"], "--all-containers")
    assert TOKEN not in seen


def test_registries(namespace: str, web: Web) -> None:
    files = {name: web.offer(name)[1] for name in ("oci", "ollama")}
    give_secret(namespace, "oci", username=stores.USER, password=stores.PASSWORD)
    title = {"org.opencontainers.image.title": "x.gguf"}
    layer = {"mediaType": "application/vnd.docker.ai.gguf.v3", "annotations": title}
    web.registry.push("org/tiny", "1", [(files["oci"], layer)])
    kind = {"mediaType": "application/vnd.ollama.image.model"}
    fetch_site.add_artifact(web.site, "library/tiny", "latest", [kind], [files["ollama"]])
    kit.put(
        namespace,
        remote("oci", "oci://registry.example/org/tiny:1", {"uuid": RTX_PRO_6000}, secretRef={"name": "oci"}),
        remote("ollama", "ollama://tiny", {"uuid": RTX_PRO_6000}),
    )
    kit.wait_available(namespace, *files, seconds=120)
    for name, file in files.items():
        answers(namespace, name)
        (pod,) = kit.pods(namespace, name)
        assert fetched(namespace, pod["metadata"]["name"]) == file.stat().st_size, name


def test_a_model_in_an_image_is_mounted_by_the_kubelet(
    namespace: str, web: Web, tmp_path_factory: pytest.TempPathFactory
) -> None:
    """The container runtime pulls it with the pod's own login: plain HTTP is what it takes from the loopback only."""
    _, file = web.offer("image")
    with stores.registry(tmp_path_factory.mktemp("images")) as registry:
        digest = registry.push_image("org/models", "1", {"models/tiny.gguf": file})
        secret = {"apiVersion": "v1", "kind": "Secret", "metadata": {"name": "login", "namespace": namespace}}
        login = json.dumps({"auths": {registry.host: {"username": stores.USER, "password": stores.PASSWORD}}})
        kind = {"type": "kubernetes.io/dockerconfigjson", "stringData": {".dockerconfigjson": login}}
        apply(secret | kind)
        source = f"image://{registry.host}/org/models@{digest}/models/tiny.gguf"
        wish = remote("image", source, {"uuid": RTX_PRO_6000})
        wish["spec"]["server"] |= {"imagePullSecrets": [{"name": "login"}]}
        kit.put(namespace, wish)
        one = kit.wait_available(namespace, "image", seconds=120)["image"]
    answers(namespace, "image")
    assert one["status"]["model"]["sizeBytes"] == file.stat().st_size
    (pod,) = kit.pods(namespace)
    assert "initContainers" not in pod["spec"]


def test_an_object_store(namespace: str, web: Web) -> None:
    if web.s3 is None:
        pytest.skip("the S3 server was not compiled yet: tests/cluster/build.sh s3")
    keys = {"accessKeyId": stores.ACCESS, "secretAccessKey": stores.SECRET, "endpoint": web.s3, "region": "us-east-1"}
    give_secret(namespace, "keys", **keys)
    _, file = web.offer("s3")
    shutil.copy(file, web.bucket / "tiny.gguf")
    kit.put(namespace, remote("s3", "s3://models/tiny.gguf", {"uuid": RTX_PRO_6000}, secretRef={"name": "keys"}))
    kit.wait_available(namespace, "s3", seconds=120)
    answers(namespace, "s3")
    (pod,) = kit.pods(namespace)
    assert fetched(namespace, pod["metadata"]["name"]) == file.stat().st_size


def test_a_store_of_google(namespace: str, web: Web, tmp_path: Path) -> None:
    if not Programs(cache_folder()).gcs.is_file():
        pytest.skip("the server of Google's interface was not compiled yet: tests/cluster/build.sh gcs")
    _, file = web.offer("gs")
    (tmp_path / "data" / "models").mkdir(parents=True)
    shutil.copy(file, tmp_path / "data" / "models" / "tiny.gguf")
    with stores.gcs(tmp_path, CONTROL_PLANE_IP) as address:
        give_secret(namespace, "account", **{"serviceAccount.json": stores.google_account(address)})
        kit.put(namespace, remote("gs", "gs://models/tiny.gguf", {"uuid": RTX_PRO_6000}, secretRef={"name": "account"}))
        kit.wait_available(namespace, "gs", seconds=120)
    answers(namespace, "gs")
    (pod,) = kit.pods(namespace)
    assert fetched(namespace, pod["metadata"]["name"]) == file.stat().st_size


def test_projector_adapter_and_draft_model_serve_beside_a_model(namespace: str, web: Web) -> None:
    """Four files of as many sources, on one pretend card; the log proves where each of them is."""
    source, file = web.offer("beside")
    draft, drafting = web.offer("draft")
    written = {name: web.folder / f"{name}.gguf" for name in ("projector", "adapter")}
    companion_writer.write_projector(written["projector"], companion_writer.TINY)
    companion_writer.write_adapter(written["adapter"], Model(vocabulary=288, head_width=64))
    for name, path in written.items():
        web.site.files[f"/{name}.gguf"] = path
    addresses = {name: f"{web.site.address}/{name}.gguf" for name in written}
    more: dict[str, object] = {
        "projector": {"source": addresses["projector"]},
        "loraAdapters": [{"source": addresses["adapter"], "scale": 0.5}],
        "draft": {"source": draft, "sha256": fetch_site.sha256(drafting)},
    }
    wishes: dict[str, dict[str, object]] = {"plain": {}, "beside": more}
    kit.put(namespace, *(remote(one, source, {"uuid": RTX_4080}, **wish) for one, wish in wishes.items()))
    both = kit.wait_available(namespace, "plain", "beside", seconds=120)
    answers(namespace, "beside")
    (pod,) = kit.pods(namespace, "beside")
    name = pod["metadata"]["name"]
    told = both["beside"]["status"]
    assert [one["kind"] for one in told["model"]["companions"]] == ["Projector", "Adapter", "Draft"]
    need = {one: both[one]["status"]["need"]["weightsBytes"] for one in both}
    assert need["beside"] > need["plain"]
    log = kubectl("logs", "-n", namespace, name, "-c", "server")
    assert "CLIP using CUDA0 backend" in log
    assert "CUDA0 LoRA buffer size" in log
    assert "adding speculative implementation 'draft-simple'" in log
    _, adapters = kit.request(kit.address_of(namespace, "beside"), "/lora-adapters")
    assert [one["scale"] for one in adapters] == [0.5]
    size = sum(path.stat().st_size for path in (drafting, *written.values()))
    assert size <= fetched(namespace, name) <= size + file.stat().st_size

    kit.put(namespace, remote("wrong", source, projector={"source": draft}))
    refused = kit.wait_condition(namespace, "wrong", "Accepted", "False", "ModelUnsupported", seconds=90)
    assert refused["message"] == "projector: the file is a model, no projector"


def test_many_pods_of_two_nodes_fetch_twice(namespace: str, web: Web) -> None:
    source, file = web.offer("many")
    for name, uuid in (("a", GTX_1060), ("b", RTX_4080), ("c", RTX_PRO_6000)):
        kit.put(namespace, remote(name, source, {"uuid": uuid}))
        kubectl("patch", "mdep", name, "-n", namespace, "--type=merge", "-p", '{"spec":{"replicas":2}}')
    kit.wait_available(namespace, "a", "b", "c", seconds=120)
    by_node: dict[str, int] = {}
    for pod in kit.pods(namespace):
        node = pod["spec"]["nodeName"]
        by_node[node] = by_node.get(node, 0) + fetched(namespace, pod["metadata"]["name"])
    size = file.stat().st_size
    assert by_node == {"node1": size, "node2": size}


def fetchers_of(address: str) -> list[int]:
    """Give the processes of this machine that fetch from this address, which is of this test alone."""
    found = []
    for one in Path("/proc").glob("[0-9]*/cmdline"):
        with suppress(OSError):
            words = one.read_bytes().decode(errors="replace").split("\0")
            if "paddock.fetch.main" in words and "get" in words and address in words:
                found.append(int(one.parent.name))
    return found


class Looker:
    """Looks all the time at the files of a cache: there must be whole ones only, and what was there stays."""

    def __init__(self, cache: Path, size: int) -> None:
        self._cache, self._size = cache, size
        self._before = {one.name for one in (cache / "blobs").iterdir()}
        self._stop = threading.Event()
        self.wrong: list[str] = []
        self._thread = threading.Thread(target=self._run, daemon=True)

    def __enter__(self) -> Self:
        """Begin."""
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        """End."""
        self._stop.set()
        self._thread.join()

    def _run(self) -> None:
        while not self._stop.wait(0.02):
            there = {one.name: one.stat().st_size for one in (self._cache / "blobs").iterdir()}
            self.wrong += [f"{name} has {size} bytes" for name, size in there.items() if self._half(name, size)]
            self.wrong += [f"{name} is gone" for name in self._before - there.keys()]

    def _half(self, name: str, size: int) -> bool:
        return name not in self._before and size != self._size


def end_everything(namespace: str, address: str, further: Callable[[float], Callable[[], bool]]) -> None:
    """End fetcher, a server's pod, agents and operator, kubelet and containerd, each amid the fetch to node2."""
    eventually("a tenth is there", further(0.1))
    os.kill(fetchers_of(address)[0], signal.SIGKILL)
    eventually("it goes on after its process was killed", further(0.1))
    pods = [pod["metadata"]["name"] for pod in kit.pods(namespace, "killed")]
    kubectl("delete", "pod", "-n", namespace, pods[0], "--grace-period=0", "--force")
    eventually("it goes on after a pod was deleted", further(0.1))
    for selector in ("app.kubernetes.io/component=node-agent", kit.OPERATOR):
        ended = [pod["metadata"]["name"] for pod in api.listed("pods", kit.SYSTEM, selector)]
        kubectl("delete", "pod", "-n", kit.SYSTEM, *ended, "--grace-period=0", "--force")
    eventually("it goes on without agents and operator", further(0.1))
    node_down("node2")
    eventually("it goes on without kubelet and containerd", further(0.05))
    node_up("node2")


def test_whatever_is_killed_amid_a_fetch_it_is_fetched_once_and_whole(namespace: str, web: Web) -> None:
    source, good = web.offer("good")
    kit.put(namespace, remote("good", source, {"uuid": RTX_PRO_6000}))
    kit.wait_available(namespace, "good")
    file = web.folder / "killed.gguf"
    kit.write_tiny(file, author="killed", forward=200_000)
    address, size = f"{web.site.address}/{file.name}", file.stat().st_size
    web.site.files[f"/{file.name}"] = file
    cache, before = models_folder("node2") / "e2e-cache", web.site.sent
    wish = remote("killed", address, {"uuid": RTX_PRO_6000}, sha256=fetch_site.sha256(file))
    wish["spec"]["replicas"] = 2

    def further(share: float) -> Callable[[], bool]:
        """Give a look at whether a further share of the file came."""
        target = min(web.site.sent + share * size, before + 0.95 * size)
        return lambda: web.site.sent >= target

    web.site.bytes_per_second = 1.5e6
    try:
        with Looker(cache, size) as looker:
            kit.put(namespace, wish)
            end_everything(namespace, address, further)
            web.site.bytes_per_second = 0
            kit.wait_available(namespace, "killed", "good", seconds=180)
    finally:
        web.site.bytes_per_second = 0
        node_up("node2")
        installation.wait_listed()
    assert looker.wrong == []
    sent = web.site.sent - before
    assert size <= sent < 1.5 * size, f"{sent} bytes of {size} were sent"
    for one in (file, good):
        digest = fetch_site.sha256(one)
        assert fetch_site.sha256(cache / "blobs" / f"sha256-{digest}") == digest
    assert list((cache / "partial").iterdir()) == []
    answers(namespace, "killed")


def test_each_failure_is_told_by_condition_and_message(namespace: str, web: Web) -> None:
    good, file = web.offer("failing")
    large = web.folder / "large.gguf"
    shutil.copy(file, large)
    with large.open("r+b") as stream:
        stream.truncate(LIMIT + 1024**3)
    web.site.files["/large.gguf"] = large
    kit.put(
        namespace,
        remote("not-found", f"{web.site.address}/absent.gguf"),
        remote("untrusted", f"{web.stranger.address}/{file.name}"),
        remote("unreachable", f"https://{CONTROL_PLANE_IP}:9/x.gguf"),
        remote("corrupt", good, sha256="0" * 64),
        remote("out-of-space", f"{web.site.address}/large.gguf"),
    )
    for name, reason in (("not-found", "ModelNotFound"), ("untrusted", "Untrusted"), ("unreachable", "Unreachable")):
        told = kit.wait_condition(namespace, name, "Accepted", "False", reason, seconds=90)
        assert told["message"], name
    corrupt = kit.wait_condition(namespace, "corrupt", "Available", "False", "Corrupt", seconds=90)
    assert "0000000000" in corrupt["message"]
    space = kit.wait_condition(namespace, "out-of-space", "Available", "False", "OutOfSpace", seconds=90)
    assert "Gi" in space["message"] or str(LIMIT) in space["message"]
    assert kit.condition(kit.mdep(namespace, "corrupt"), "Accepted")["status"] == "True"


def nodes_are(*names: str) -> Callable[[kit.Object], bool]:
    """Give a look at whether the files of a model are on exactly these nodes."""
    return lambda one: one.get("status", {}).get("model", {}).get("nodes") == list(names)


def test_a_node_fetches_ahead_of_need(namespace: str, web: Web) -> None:
    source, _ = web.offer("ahead")
    wish = remote(
        "ahead", source, {"uuid": RTX_PRO_6000}, prefetch={"nodeSelector": {"kubernetes.io/hostname": "node2"}}
    )
    wish["spec"]["replicas"] = 0
    kit.put(namespace, wish)
    known = kit.wait_all(namespace, ["ahead"], "files on node2", nodes_are("node2"), 90)
    assert known["ahead"]["status"]["replicas"] == 0
    kubectl("patch", "mdep", "ahead", "-n", namespace, "--type=merge", "-p", '{"spec":{"replicas":1}}')
    kit.wait_available(namespace, "ahead")
    (pod,) = kit.pods(namespace)
    assert fetched(namespace, pod["metadata"]["name"]) == 0
    answers(namespace, "ahead")
