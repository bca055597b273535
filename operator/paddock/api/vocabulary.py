"""Every word that Paddock says to users and to Kubernetes, in one place.

Condition types, reasons, verdicts per device, labels, annotations. The reference and the troubleshooting page are
generated from the texts here. Reasons match the API's pattern for reasons, `[A-Za-z]([A-Za-z0-9_,:]*[A-Za-z0-9_])?`.
"""

from enum import StrEnum
from typing import NamedTuple

GROUP = "paddock.dev"
VERSION = "v1alpha1"
API_VERSION = f"{GROUP}/{VERSION}"
GRANULE = 256 * 1024 * 1024
"""Bytes of the step in which memory is reserved and free memory is reported: 256 MiB."""


class Label:
    """Labels on the objects that Paddock makes or finds."""

    DEPLOYMENT = f"{GROUP}/model-deployment"
    """Name of the ModelDeployment that a Pod, Service or claim belongs to."""
    COMPONENT = "app.kubernetes.io/component"
    NAME = "app.kubernetes.io/name"
    INSTANCE = "app.kubernetes.io/instance"
    MANAGED_BY = "app.kubernetes.io/managed-by"
    NODE_AGENT = "node-agent"
    """Value of COMPONENT on agent pods."""
    INSPECT = "model-inspector"
    """Value of COMPONENT on the short pods that read a GGUF header from a claim."""
    SERVER = "model-server"
    """Value of COMPONENT on pods that serve a model."""
    FETCH = "model-fetcher"
    """Value of COMPONENT on the short pods that fetch a model's files before a server is there."""
    MODEL_ROOT = f"{GROUP}/model-root"
    """Hash of the model root that a PersistentVolume and its claim give access to."""
    DEDICATED = f"{GROUP}/dedicated"
    """On a Node, with the value true: its owner says that its GPUs are Paddock's alone, whatever plugins run there."""


class Annotation:
    """Annotations on objects; on a Pod they are the record from which all state can be rebuilt."""

    PLACEMENT = f"{GROUP}/placement"
    """On a Pod: JSON of the decision: node, devices, bytes, reason, policy."""
    REVISION = f"{GROUP}/revision"
    """On a Pod: hash of the part of the user's spec that its template was rendered from."""
    PLACEMENT_SPEC = f"{GROUP}/placement-spec"
    """On a Pod: hash of spec.placement when the decision was taken."""
    RESTARTED_AT = f"{GROUP}/restarted-at"
    """On a ModelDeployment: any new value rolls every replica once (`paddock restart`)."""
    HOST_BUDGET = f"{GROUP}/host-budget"
    """On a Node: host memory that models may have there: Auto, Unlimited or a quantity."""
    NODE = f"{GROUP}/node"
    """On a GPU: the node for which the operator made it. On a claim of a node's cache: the node."""
    TRUSTED = f"{GROUP}/trusted-certificates"
    """On a Pod that fetches: certificates that it trusts beside the usual ones, as PEM."""
    FETCHES = f"{GROUP}/fetches"
    """On a Pod that fetches beforehand: which source, for which node."""
    REPLICA = f"{GROUP}/replica"
    """On a Pod: the number of the replica, from 0."""


READINESS_GATE = f"{GROUP}/verified"
"""Pod condition that the operator alone sets, once per container id, from evidence of where the buffers are."""


class ConditionType(StrEnum):
    """Condition types of a ModelDeployment; all of positive polarity."""

    ACCEPTED = "Accepted"
    PLACED = "Placed"
    VERIFIED = "Verified"
    AVAILABLE = "Available"
    PROGRESSING = "Progressing"
    READY = "Ready"


CONDITION_MEANING: dict[ConditionType, str] = {
    ConditionType.ACCEPTED: "The spec is understood and allowed, and the model's header could be read.",
    ConditionType.PLACED: "Every wanted replica has a device (or the CPU, where allowed) reserved.",
    ConditionType.VERIFIED: "Evidence shows that every running replica's buffers are on its reserved device, nowhere else.",
    ConditionType.AVAILABLE: "Every wanted replica answers requests.",
    ConditionType.PROGRESSING: "Something is still on its way to what the spec asks for.",
    ConditionType.READY: "On a GPU: an agent lists the device and its memory is known.",
}


class Entry(NamedTuple):
    """What a reason or verdict means, and what its reader can do."""

    meaning: str
    remedy: str


class Reason(StrEnum):
    """Reasons of conditions and of Events."""

    # good news
    VALID = "Valid"
    PLACED = "Placed"
    BUFFERS_ON_DEVICE = "BuffersOnDevice"
    PROCESS_ON_DEVICE = "ProcessOnDevice"
    SERVING = "Serving"
    COMPLETE = "Complete"
    SUSPENDED = "Suspended"
    # under way
    READING_HEADER = "ReadingHeader"
    STARTING = "Starting"
    ROLLING_OUT = "RollingOut"
    WAITING_FOR_DEVICE = "WaitingForDevice"
    AWAITING_EVIDENCE = "AwaitingEvidence"
    SCALING = "Scaling"
    MAKING_ROOM = "MakingRoom"
    MOVING = "Moving"
    DISPLACED = "Displaced"
    ROOM_NOT_FREED = "RoomNotFreed"
    # refusals of the spec
    INVALID_SPEC = "InvalidSpec"
    ARGUMENT_REFUSED = "ArgumentRefused"
    IMAGE_REFUSED = "ImageRefused"
    SOURCE_REFUSED = "SourceRefused"
    NO_IMAGE = "NoImage"
    PRIORITY_REFUSED = "PriorityRefused"
    SERVICE_NAME_TAKEN = "ServiceNameTaken"
    # the model file
    MODEL_NOT_FOUND = "ModelNotFound"
    MODEL_UNREADABLE = "ModelUnreadable"
    NOT_GGUF = "NotGguf"
    MODEL_TRUNCATED = "ModelTruncated"
    MODEL_UNSUPPORTED = "ModelUnsupported"
    CLAIM_NOT_FOUND = "ClaimNotFound"
    INSPECTION_FAILED = "InspectionFailed"
    # fetching it
    FETCHING = "Fetching"
    UNAUTHORIZED = "Unauthorized"
    UNTRUSTED = "Untrusted"
    OUT_OF_SPACE = "OutOfSpace"
    UNREACHABLE = "Unreachable"
    CORRUPT = "Corrupt"
    FETCH_FAILED = "FetchFailed"
    NO_CACHE = "NoCache"
    # placement
    NO_DEVICE = "NoDevice"
    INSUFFICIENT_MEMORY = "InsufficientMemory"
    DEVICE_NOT_FOUND = "DeviceNotFound"
    NO_NODE_AGENT = "NoNodeAgent"
    CPU_NOT_ALLOWED = "CpuNotAllowed"
    # the server
    WRONG_DEVICE = "WrongDevice"
    CPU_FALLBACK = "CpuFallback"
    SECOND_DEVICE = "SecondDevice"
    OVER_PLAN = "OverPlan"
    NO_EVIDENCE = "NoEvidence"
    SERVER_FAILED = "ServerFailed"
    DEVICE_NOT_VISIBLE = "DeviceNotVisible"
    OUT_OF_MEMORY = "OutOfMemory"
    STARTUP_TIMEOUT = "StartupTimeout"
    UNSCHEDULABLE = "Unschedulable"
    IMAGE_PULL_FAILED = "ImagePullFailed"
    ADMISSION_FAILED = "AdmissionFailed"
    POD_REFUSED = "PodRefused"
    RECORD_CHANGED = "RecordChanged"
    # GPUs
    LISTED = "Listed"
    AGENT_SILENT = "AgentSilent"
    LISTING_FAILED = "ListingFailed"
    NOT_LISTED = "NotListed"
    MEMORY_UNKNOWN = "MemoryUnknown"
    QUARANTINED = "Quarantined"
    REPEATED_MISMATCH = "RepeatedMismatch"
    DEVICE_LOST = "DeviceLost"
    DEVICE_UNHEALTHY = "DeviceUnhealthy"
    NODE_NOT_READY = "NodeNotReady"
    NODE_GONE = "NodeGone"


REASONS: dict[Reason, Entry] = {
    Reason.VALID: Entry("The spec is valid and the model's header was read.", "Nothing to do."),
    Reason.PLACED: Entry("Every replica has its device; the message says which and why.", "Nothing to do."),
    Reason.BUFFERS_ON_DEVICE: Entry(
        "The server's own log names exactly the reserved device (by PCI id), and its model, KV and compute buffers are on it.",
        "Nothing to do.",
    ),
    Reason.PROCESS_ON_DEVICE: Entry(
        "The driver lists the server's process on exactly the reserved device and on no other, and its log agrees.",
        "Nothing to do.",
    ),
    Reason.SERVING: Entry("Every replica is Ready.", "Nothing to do."),
    Reason.COMPLETE: Entry("What runs is what the spec asks for.", "Nothing to do."),
    Reason.SUSPENDED: Entry(
        "spec.suspend is true: no replica runs and no device is reserved.", "Set spec.suspend to false to start."
    ),
    Reason.READING_HEADER: Entry("The GGUF header is being read, to know the memory need.", "Wait; it takes seconds."),
    Reason.STARTING: Entry("A server loads the model.", "Wait; `paddock logs NAME` shows the load."),
    Reason.ROLLING_OUT: Entry("Replicas of an older spec are being replaced.", "Wait."),
    Reason.WAITING_FOR_DEVICE: Entry(
        "No device has room now; the message says how many bytes are missing where.",
        "Delete or scale down another deployment, shorten contextLength, or allow other devices. It starts by itself when room appears.",
    ),
    Reason.AWAITING_EVIDENCE: Entry("The server is up, its log has not been read yet.", "Wait; it takes a second."),
    Reason.SCALING: Entry("Replicas are being added or removed.", "Wait."),
    Reason.MAKING_ROOM: Entry(
        "Others were asked to leave a GPU, or room is kept on it, so that this deployment gets it; the message says who.",
        "Wait: a move takes as long as the other model loads, an eviction as long as its server ends.",
    ),
    Reason.MOVING: Entry(
        "A replica moves to another GPU, so that another deployment gets the one that it has.",
        "Wait. Set spec.disruption.allowed to false to have it left alone.",
    ),
    Reason.DISPLACED: Entry(
        "A replica was ended for a deployment of higher priority; the message says which and why. It waits in the queue.",
        "Wait, raise spec.priority, or set spec.disruption.allowed to false to have it left alone.",
    ),
    Reason.ROOM_NOT_FREED: Entry(
        "Room that was asked for did not come free in time: a pod did not end, a moved model did not load elsewhere, or the GPU does not report its memory back.",
        "See the message; look at the pods that it names and at `kubectl get gpus`.",
    ),
    Reason.INVALID_SPEC: Entry(
        "The spec has a value that cannot work; the message names the field.", "Correct the field and apply again."
    ),
    Reason.ARGUMENT_REFUSED: Entry(
        "spec.serving.args holds an argument that is unknown, has its own field, or could break the pin or run code.",
        "Remove it, or use the field that the message names.",
    ),
    Reason.IMAGE_REFUSED: Entry(
        "spec.server.image is not in the operator's list of allowed images.",
        "Use an allowed image, or ask the administrator to add it to `images.allowed` in the chart's values.",
    ),
    Reason.SOURCE_REFUSED: Entry(
        "A file:// source lies outside the model roots that the administrator declared.",
        "Use a path below one of the roots that the message lists, or ask for another entry in `modelRoots`.",
    ),
    Reason.NO_IMAGE: Entry(
        "No server image is known for the chosen device's backend, driver and processor.",
        "Set spec.server.image, or `images.servers` in the chart's values.",
    ),
    Reason.PRIORITY_REFUSED: Entry(
        "spec.priority is above what a PlacementPolicy allows in the namespace. What runs stays, nothing more is started.",
        "Lower spec.priority, or ask the owner of the fleet.",
    ),
    Reason.SERVICE_NAME_TAKEN: Entry(
        "A Service of the deployment's name exists and belongs to somebody else.",
        "Rename the deployment or remove that Service.",
    ),
    Reason.MODEL_NOT_FOUND: Entry(
        "No such file on any node that could serve it.", "Check the path, and that the file is on the node."
    ),
    Reason.MODEL_UNREADABLE: Entry(
        "The file exists but cannot be read by the server's user, or is not a regular file.",
        "Make it readable for user 65532 (for example `chmod a+r`), and name a file, not a folder.",
    ),
    Reason.NOT_GGUF: Entry(
        "The file does not begin like a GGUF file.", "Convert the model to GGUF, or name the right file."
    ),
    Reason.MODEL_TRUNCATED: Entry(
        "The file is shorter than its own header says.",
        "Copy or download it again; compare its size and checksum with the original.",
    ),
    Reason.MODEL_UNSUPPORTED: Entry(
        "The header is valid but describes something that cannot be served.", "See the message."
    ),
    Reason.CLAIM_NOT_FOUND: Entry(
        "The PersistentVolumeClaim of a pvc:// source does not exist.", "Create it in the same namespace."
    ),
    Reason.INSPECTION_FAILED: Entry(
        "The pod that reads the header from the claim failed or never ran.",
        "See the message and the Events of the inspector pod.",
    ),
    Reason.FETCHING: Entry(
        "The model's files are fetched to the node; status.model.progress has per cent and speed.",
        "Wait; `paddock logs NAME` shows the server once the files are there.",
    ),
    Reason.UNAUTHORIZED: Entry(
        "The source refuses the credentials, or asks for some (HTTP 401 or 403).",
        "Put a valid token or key into the Secret that spec.model.secretRef names; for a gated model accept its terms first. It is tried again with growing pauses.",
    ),
    Reason.UNTRUSTED: Entry(
        "The source's certificate is not trusted, or it leads to an address that is not allowed.",
        "Add the certificate authority to `fetch.caBundle` in the chart's values, or correct the source.",
    ),
    Reason.OUT_OF_SPACE: Entry(
        "The cache has less room than the files need; the message has both numbers.",
        "Free space on the node (`paddock cache clear`), raise `modelCache.size`, or use a larger claim. It is tried again by itself.",
    ),
    Reason.UNREACHABLE: Entry(
        "The source does not answer, or breaks off again and again. What was fetched is kept, and the rest is tried again.",
        "Check name, network policy, `fetch.proxy`, `fetch.hub` and `fetch.mirrors` in the chart's values.",
    ),
    Reason.CORRUPT: Entry(
        "What was fetched is not what it should be: checksum, length or structure differ. Nothing of it is served.",
        "Compare spec.model.sha256 with the source's; fetch it by hand to see whether the source is damaged.",
    ),
    Reason.FETCH_FAILED: Entry(
        "The container that fetches the files failed for another reason; the message has its last words.",
        "See the log of the container `fetch` of the pod.",
    ),
    Reason.NO_CACHE: Entry(
        "The source has to be fetched, and there is no place for it.",
        "Name a claim in spec.model.cache.claim, or ask the administrator for `modelCache.hostPath` in the chart's values.",
    ),
    Reason.NO_DEVICE: Entry(
        "No device passes the filters; the message counts the verdicts.",
        "`paddock explain NAME` shows the verdict of each device.",
    ),
    Reason.INSUFFICIENT_MEMORY: Entry(
        "The need is larger than any allowed device ever has.",
        "Shorten contextLength, use a smaller cache type or quantisation, or add a larger GPU.",
    ),
    Reason.DEVICE_NOT_FOUND: Entry(
        "None of the devices named in spec.placement.devices is known.", "Compare with `kubectl get gpus -o wide`."
    ),
    Reason.NO_NODE_AGENT: Entry(
        "No node agent answers on a node where this could run, or none of those that answer lists a device.",
        "See `kubectl -n paddock-system get pods` and `kubectl get gpus`; is the agent's nodeSelector right, does `nvidia-smi` work?",
    ),
    Reason.CPU_NOT_ALLOWED: Entry(
        "gpuLayers is 0, or no device is left, and spec.placement.allowCPU is false.",
        "Set allowCPU to true to serve on the CPU.",
    ),
    Reason.WRONG_DEVICE: Entry(
        "The server's log or the driver shows it on another device than the reserved one. It gets no traffic and is made "
        "anew with growing pauses, for a while not on that device.",
        "The message names both. Report it: driver, container runtime or image map devices wrongly.",
    ),
    Reason.CPU_FALLBACK: Entry(
        "The server has in host memory what belongs on the device, by its log or because the driver does not show it. It "
        "gets no traffic and is made anew with growing pauses, for a while not on that device.",
        "Check the driver and the container runtime of the node; see `paddock logs NAME`.",
    ),
    Reason.SECOND_DEVICE: Entry(
        "The server uses more than one device. It gets no traffic and is made anew with growing pauses, for a while not "
        "on that device.",
        "See the message; report it.",
    ),
    Reason.OVER_PLAN: Entry(
        "The driver shows more memory for the server than was reserved, beyond 256 MiB and a twentieth of it. It is made "
        "anew with growing pauses, for a while not on that device.",
        "Report it with the model and its options: the estimate is too low. A shorter contextLength needs less.",
    ),
    Reason.NO_EVIDENCE: Entry(
        "The server's log has no lines about devices and buffers, so nothing is proven; it gets no traffic.",
        "Is spec.server.image a llama-server that logs at level 4?",
    ),
    Reason.SERVER_FAILED: Entry("The server exits; the message has its last error line.", "See `paddock logs NAME`."),
    Reason.DEVICE_NOT_VISIBLE: Entry(
        "The container was given no GPU of the backend: the server knows no such device, and ends.",
        "On NVIDIA check the node's container toolkit, its RuntimeClass and the driver; on AMD, Intel and Vulkan the pod lacks the device nodes.",
    ),
    Reason.OUT_OF_MEMORY: Entry(
        "The device, or the pod's memory limit, had less room than the estimate.",
        "Look for foreign processes on the GPU; shorten contextLength; raise spec.server.resources.",
    ),
    Reason.STARTUP_TIMEOUT: Entry("The server did not finish loading in time.", "Raise spec.server.startupTimeout."),
    Reason.UNSCHEDULABLE: Entry(
        "The scheduler refuses the pod on the chosen node; the message is its own.",
        "Free CPU or memory on the node, or add a toleration.",
    ),
    Reason.IMAGE_PULL_FAILED: Entry(
        "The image cannot be pulled.", "Check its name, imagePullSecrets and the registry."
    ),
    Reason.ADMISSION_FAILED: Entry(
        "The kubelet refused the pod (for example while a device plugin was restarting); it is made again with growing delay.",
        "Wait; if it persists see the message.",
    ),
    Reason.POD_REFUSED: Entry(
        "The API server refuses the pod: a quota, an admission policy or webhook, the namespace's rules. The message is its own.",
        "Change the quota or policy, or the spec.",
    ),
    Reason.RECORD_CHANGED: Entry(
        "Somebody changed the annotation paddock.dev/placement of a pod. It is put back, or where it is not known any more the pod is replaced; what is reserved stays.",
        "Leave it alone: to have a model elsewhere change spec.placement.",
    ),
    Reason.LISTED: Entry("The node's agent lists the device.", "Nothing to do."),
    Reason.AGENT_SILENT: Entry(
        "The node's agent has not answered for a while. What runs is left alone, nothing new is placed here.",
        "See the agent pod of that node.",
    ),
    Reason.LISTING_FAILED: Entry(
        "ggml's or the driver's listing crashed, hung or failed on the node.",
        "See the agent's log; check the driver (`nvidia-smi`).",
    ),
    Reason.QUARANTINED: Entry(
        "The device's owner has set spec.quarantine. What runs there stays and is not drained, nothing new is placed.",
        '`kubectl patch gpu NAME --type=merge -p \'{"spec":{"quarantine":false}}\'` ends it.',
    ),
    Reason.REPEATED_MISMATCH: Entry(
        "Several servers that belong on the device were found elsewhere. Nothing new is placed there for a while; then it is tried again.",
        "See the message; check the driver and the container runtime of the node. A reboot of the node ends it, too.",
    ),
    Reason.DEVICE_LOST: Entry(
        "The driver has lost the card: it does not answer on the bus. A server there that ends is made anew elsewhere.",
        "Reset the card or reboot the node; it counts again as soon as the driver answers.",
    ),
    Reason.DEVICE_UNHEALTHY: Entry(
        "The driver tells of errors of the card. Nothing new is placed there until five minutes have passed without, or until it was reset; what runs stays, and a server there that ends is made anew elsewhere.",
        "See the message and the node's kernel log; where the driver asks for a reset, drain the node and do it.",
    ),
    Reason.NODE_NOT_READY: Entry(
        "Kubernetes says that the device's node is not Ready. Reservations stay, nothing new is placed.",
        "See `kubectl describe node`.",
    ),
    Reason.NODE_GONE: Entry(
        "The device's node was deleted; the object goes with the last pod that has a reservation on it.",
        "Nothing to do, unless the node should be there.",
    ),
    Reason.NOT_LISTED: Entry(
        "The device was there before and is not listed any more.", "Check the hardware and the driver."
    ),
    Reason.MEMORY_UNKNOWN: Entry(
        "The driver does not say how much memory the device has.",
        "Is the GPU full or in exclusive mode? See `nvidia-smi`.",
    ),
}


class Verdict(StrEnum):
    """Why a device was chosen, could have been, or was refused for one replica."""

    CHOSEN = "Chosen"
    FITS = "Fits"
    NOT_READY = "NotReady"
    NODE_NOT_READY = "NodeNotReady"
    NODE_UNSCHEDULABLE = "NodeUnschedulable"
    NODE_NOT_SELECTED = "NodeNotSelected"
    NODE_TAINTED = "NodeTainted"
    BACKEND_MISSING = "BackendMissing"
    RUNTIME_CLASS_MISSING = "RuntimeClassMissing"
    VENDOR_PLUGIN_PRESENT = "VendorPluginPresent"
    BINDER_MISSING = "BinderMissing"
    TYPE_NOT_ALLOWED = "TypeNotAllowed"
    NOT_SELECTED = "NotSelected"
    AMBIGUOUS = "Ambiguous"
    MODEL_MISSING = "ModelMissing"
    VOLUME_ELSEWHERE = "VolumeElsewhere"
    MODEL_TOO_BIG = "ModelTooBig"
    NO_ROOM = "NoRoom"
    HOST_MEMORY = "HostMemory"
    NOT_ALLOWED = "NotAllowed"
    OVER_QUOTA = "OverQuota"


VERDICTS: dict[Verdict, Entry] = {
    Verdict.CHOSEN: Entry("This is the device.", "Nothing to do."),
    Verdict.FITS: Entry(
        "It would do, but the policy ranks another one higher.", "Name it in spec.placement.devices to have it."
    ),
    Verdict.NOT_READY: Entry(
        "The device is not listed, out of order or in quarantine, its memory is unknown, or its agent is silent; or this "
        "deployment's last server there was found elsewhere.",
        "See the detail, and the GPU's Ready condition.",
    ),
    Verdict.NODE_NOT_READY: Entry("The node is not Ready.", "See `kubectl describe node`."),
    Verdict.NODE_UNSCHEDULABLE: Entry("The node is cordoned.", "`kubectl uncordon` it when it may serve again."),
    Verdict.NODE_NOT_SELECTED: Entry(
        "spec.placement.nodeSelector excludes the node.", "Change the selector or the node's labels."
    ),
    Verdict.NODE_TAINTED: Entry("The node has a taint that spec.server.tolerations lacks.", "Add a toleration."),
    Verdict.BACKEND_MISSING: Entry(
        "No server image is known for the device's backend.",
        "Set `images.servers` in the chart's values, or spec.server.image.",
    ),
    Verdict.RUNTIME_CLASS_MISSING: Entry(
        "The RuntimeClass that gives an NVIDIA GPU to a container does not exist.",
        "Install the NVIDIA container toolkit with its RuntimeClass, or set `runtimeClasses.nvidia` in the chart's values.",
    ),
    Verdict.VENDOR_PLUGIN_PRESENT: Entry(
        "Its vendor's plugin gives it to others, too.",
        "Keep that off the node, or label it paddock.dev/dedicated=true.",
    ),
    Verdict.BINDER_MISSING: Entry("The way by which pods get it is missing now.", "See the detail; docs/binding.md."),
    Verdict.TYPE_NOT_ALLOWED: Entry(
        "An integrated GPU is used only when no discrete one is allowed or fits, or when spec.placement.allowIntegrated is Always.",
        "Set allowIntegrated to Always.",
    ),
    Verdict.NOT_SELECTED: Entry(
        "spec.placement.devices does not name it, or spec.placement.selector excludes it; the detail says by which part.",
        "Add it to the list, or change the selector.",
    ),
    Verdict.AMBIGUOUS: Entry(
        "Another device of the node looks exactly alike and neither has an id.", "Use a driver that gives PCI ids."
    ),
    Verdict.MODEL_MISSING: Entry("The model file is not on the device's node.", "Copy it there."),
    Verdict.VOLUME_ELSEWHERE: Entry("The node cannot reach the claim's volume.", "Use a volume that it can mount."),
    Verdict.MODEL_TOO_BIG: Entry(
        "Even empty it has less memory than the need.", "Shorten contextLength or use a smaller quantisation."
    ),
    Verdict.NO_ROOM: Entry("It fits an empty device, but others hold the memory now.", "Wait, or free it."),
    Verdict.NOT_ALLOWED: Entry(
        "A PlacementPolicy keeps the device from the namespace; the detail names it and the part that excludes it.",
        "Use another device, or ask the owner of the fleet.",
    ),
    Verdict.OVER_QUOTA: Entry(
        "The device has room, but the namespace would have more than a PlacementPolicy allows, in all or on this device.",
        "Free memory that deployments of the policy's namespaces have, or ask the owner of the fleet.",
    ),
    Verdict.HOST_MEMORY: Entry(
        "The device has room, but the host memory that models may have on its node is spoken for.",
        "Wait, or raise `server.hostBudget` in the chart's values or the node's annotation paddock.dev/host-budget.",
    ),
}
