"""Settings from the environment: values, mistakes, and what is none of the agent's business."""

from pathlib import Path

import pytest

from paddock.agent.settings import Settings, SettingsError, load_settings


def test_defaults() -> None:
    settings = load_settings({"PATH": "/bin", "HOME": "/"})
    assert settings == Settings()
    assert (settings.listing_interval, settings.listing_timeout, settings.memory_interval) == (600, 60, 15)
    assert (settings.host, settings.port) == (None, 9443)
    assert settings.credentials_folder == Path("/etc/paddock/agent")
    assert settings.metrics_token


def test_every_setting_is_read() -> None:
    settings = load_settings(
        {
            "PADDOCK_LIBRARY_FOLDER": "/lib/ggml",
            "PADDOCK_LISTING_INTERVAL": "300",
            "PADDOCK_LISTING_TIMEOUT": "2.5",
            "PADDOCK_MEMORY_INTERVAL": "5",
            "PADDOCK_WATCH_INTERVAL": "2",
            "PADDOCK_FAULT_HOLD": "60",
            "PADDOCK_HOST_PROCESSES": "true",
            "PADDOCK_MODEL_ROOTS": "/models:/more/models, /third",
            "PADDOCK_PLUGIN_FOLDER": "/run/paddock",
            "PADDOCK_KUBELET_FOLDER": "/kubelet",
            "PADDOCK_CDI_FOLDERS": "/cdi:/more/cdi",
            "PADDOCK_SYS_FOLDER": "/host/sys",
            "PADDOCK_DEV_FOLDER": "/host/dev",
            "PADDOCK_POD_RESOURCES": "/relay/pods.sock",
            "PADDOCK_CREDENTIALS_FOLDER": "/secrets",
            "PADDOCK_LISTEN": "[::1]:8443",
            "PADDOCK_CACHE_FOLDER": "/model-cache",
            "PADDOCK_BOOT_ID_FILE": "/boot_id",
            "PADDOCK_HEADER_TIMEOUT": "7",
            "PADDOCK_METRICS_TOKEN": "false",
            "PADDOCK_LOG_FORMAT": "json",
            "PADDOCK_LOG_LEVEL": "debug",
        }
    )
    assert settings == Settings(
        library_folder=Path("/lib/ggml"),
        listing_interval=300,
        listing_timeout=2.5,
        memory_interval=5,
        fault_hold=60,
        watch_interval=2,
        host_processes=True,
        model_roots=("/models", "/more/models", "/third"),
        plugin_folder=Path("/run/paddock"),
        kubelet_folder=Path("/kubelet"),
        cdi_folders=("/cdi", "/more/cdi"),
        sys_folder=Path("/host/sys"),
        dev_folder=Path("/host/dev"),
        pod_resources=Path("/relay/pods.sock"),
        credentials_folder=Path("/secrets"),
        listen="[::1]:8443",
        cache_folder=Path("/model-cache"),
        boot_id_file=Path("/boot_id"),
        header_timeout=7,
        metrics_token=False,
        log_format="json",
        log_level="debug",
    )
    assert len(settings.model_fields_set) == len(Settings.model_fields)
    assert (settings.host, settings.port) == ("::1", 8443)


def test_an_empty_value_is_the_default() -> None:
    assert load_settings({"PADDOCK_LIBRARY_FOLDER": "", "PADDOCK_LISTING_INTERVAL": ""}) == Settings()


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("PADDOCK_LISTING_INTERVAL", "often"),
        ("PADDOCK_LISTING_INTERVAL", "0"),
        ("PADDOCK_LISTING_TIMEOUT", "-1"),
        ("PADDOCK_LISTING_TIMEOUT", "inf"),
        ("PADDOCK_MEMORY_INTERVAL", "nan"),
        ("PADDOCK_MODEL_ROOTS", "models"),
        ("PADDOCK_MODEL_ROOTS", "/models:../etc"),
        ("PADDOCK_LISTEN", "9443"),
        ("PADDOCK_LISTEN", "localhost:port"),
        ("PADDOCK_LISTEN", ":70000"),
        ("PADDOCK_METRICS_TOKEN", "perhaps"),
        ("PADDOCK_LOG_FORMAT", "xml"),
        ("PADDOCK_LOG_LEVEL", "loud"),
    ],
)
def test_a_bad_value_is_named(name: str, value: str) -> None:
    with pytest.raises(SettingsError) as caught:
        load_settings({name: value})
    assert f"{name}={value!r}" in str(caught.value)


def test_all_mistakes_are_told_at_once() -> None:
    with pytest.raises(SettingsError) as caught:
        load_settings({"PADDOCK_AGENT_SPEED": "1", "PADDOCK_LISTEN": "x", "PADDOCK_LOG_LEVEL": "loud"})
    assert len(str(caught.value).splitlines()) == 3


@pytest.mark.parametrize(
    ("name", "meant"),
    [
        ("PADDOCK_LISTING_INTERVALL", "PADDOCK_LISTING_INTERVAL"),
        ("PADDOCK_MODEL_ROOT", "PADDOCK_MODEL_ROOTS"),
        ("PADDOCK_AGENT_LISTEN", "PADDOCK_LISTEN"),
    ],
)
def test_a_misspelt_name_is_refused_with_a_proposal(name: str, meant: str) -> None:
    with pytest.raises(SettingsError, match=f"{name} is not a setting of the agent; did you mean {meant}\\?"):
        load_settings({name: "1"})


@pytest.mark.parametrize(
    "name",
    [
        "PADDOCK_AGENT_SERVICE_HOST",
        "PADDOCK_AGENT_SERVICE_PORT_HTTPS",
        "PADDOCK_AGENT_PORT",
        "PADDOCK_AGENT_PORT_9443_TCP_ADDR",
        "PADDOCK_PRETEND_GPUS",
    ],
)
def test_what_others_put_into_the_environment_is_left_alone(name: str) -> None:
    assert load_settings({name: "tcp://10.0.0.1:9443"}) == Settings()
