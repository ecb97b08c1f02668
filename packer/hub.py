"""Parquet files of the Hugging Face Hub, by `hf://` addresses: huggingface_hub fetches them into its own cache."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path, PurePosixPath
from typing import Any, Final, Self

from packtrain._core.errors import ListError, MissingDependency, PacktrainError, RemoteError, UsageError
from packtrain._core.installing import extra_command
from packtrain._core.paths import is_hub_address

from .parquet_samples import PARQUET, ParquetFile, of_one_folder

_FORM: Final = re.compile(
    r"hf:/{1,3}datasets/(?P<repository>[\w.-]+/[\w.-]+)"
    r"(@(?P<revision>refs/(convert|pr)/[^/]+|[^/]+))?(/(?P<path>.*))?"
)
_COMMIT: Final = re.compile("[0-9a-f]{40}")
_ALIASES: Final = {"~parquet": "refs/convert/parquet"}
_WILD: Final = {r"\*\*/": "(?:.*/)?", r"\*": "[^/]*", r"\?": "[^/]"}
_REFUSALS: Final = {
    "RevisionNotFoundError": "has no revision {address.revision}: name another, or none",
    "GatedRepoError": "is for those who have accepted its terms. Accept them on its page, then log in with `hf auth "
    "login`, or set HF_TOKEN",
    "RepositoryNotFoundError": "is not at {hub}, or it is private. Mend the name; or log in with `hf auth login`, or "
    "set HF_TOKEN",
    "EntryNotFoundError": "has no folder {folder}: mend the address",
}
"""Errors of huggingface_hub, and what they say of a dataset. The first that fits counts."""


@dataclass(frozen=True)
class HubAddress:
    """The address of Parquet files on the Hub.

    Attributes:
        repository: Owner and name of the dataset.
        revision: A branch, a tag or a commit; None for the main branch.
        path: A file, a folder, or a pattern, from the folder of the dataset.
    """

    repository: str
    revision: str | None
    path: str

    @classmethod
    def of(cls, source: object) -> Self | None:
        """The address that a text is; None if it is something else.

        Raises:
            UsageError: It begins like one, and is none.
        """
        if not isinstance(source, str) or not is_hub_address(source):
            return None
        found = _FORM.fullmatch(source.strip())
        if found is None:
            raise UsageError(
                f"{source!r} is not the address of a dataset: write hf://datasets/OWNER/NAME/PATH, as in "
                "'hf://datasets/ylecun/mnist/mnist/train-*.parquet'; a commit, tag or branch stands behind NAME, as @v1"
            )
        revision = found["revision"] and _ALIASES.get(found["revision"], found["revision"].replace("%2F", "/"))
        return cls(found["repository"], revision, (found["path"] or "").strip("/"))

    def __str__(self) -> str:
        revision = f"@{self.revision}" if self.revision else ""
        return f"hf://datasets/{self.repository}{revision}" + f"/{self.path}" * bool(self.path)

    def fetch(self, on_warning: Callable[[str], None] | None = None) -> list[ParquetFile]:
        """Fetches the files, as far as they are not in the cache of huggingface_hub.

        Raises:
            MissingDependency: huggingface_hub is not installed.
            ListError: There are no such files, or nobody may read them.
            UsageError: They belong to several splits.
            RemoteError: The Hub cannot be reached.
        """
        hub = _require_hub()
        with self._errors(hub):
            api = hub.HfApi()
            commit = api.dataset_info(self.repository, revision=self.revision).sha
            if not isinstance(commit, str) or not _COMMIT.fullmatch(commit):
                # It becomes the name of a folder.
                raise ValueError("the commit of the dataset is not 40 hexadecimal digits")
            if on_warning is not None and not _COMMIT.fullmatch(self.revision or ""):
                on_warning(
                    f"{self} is now commit {commit}. To continue this run or to repeat it once there is another one, "
                    f"name it: {replace(self, revision=commit)}"
                )
            tree = api.list_repo_tree(
                self.repository, self._start(), recursive=True, revision=commit, repo_type="dataset"
            )
            there = {file.path: file for file in tree if isinstance(file, hub.hf_api.RepoFile)}
            chosen = self._chosen([name for name in there if name.endswith(PARQUET)])
            return [self._fetched(hub, there[name], commit) for name in chosen]

    def _start(self) -> str | None:
        """The folder that is listed."""
        parts = self.path.split("/")
        wild = next((number for number, part in enumerate(parts) if set(part) & set("*?")), len(parts))
        if wild == len(parts) and self.path.endswith(PARQUET):
            wild -= 1
        return "/".join(parts[:wild]) or None

    def _chosen(self, names: list[str]) -> list[str]:
        pattern = re.escape(self.path)
        for wild, meaning in _WILD.items():
            pattern = pattern.replace(wild, meaning)
        if self.path == self._start() or not self.path:
            found = list(map(str, of_one_folder(PurePosixPath(self.path), list(map(PurePosixPath, names)))))
        else:
            found = sorted(filter(re.compile(pattern).fullmatch, names))
        if not found:
            raise ListError(
                f"{self} names no Parquet file: mend the path. The Hub makes Parquet files of many datasets that have "
                f"none: hf://datasets/{self.repository}@~parquet"
            )
        return found

    def _fetched(self, hub: Any, file: Any, commit: str) -> ParquetFile:
        path = hub.hf_hub_download(self.repository, file.path, repo_type="dataset", revision=commit)
        content = file.blob_id if file.lfs is None else file.lfs.sha256
        return ParquetFile(Path(path), file.path, f"hf://datasets/{self.repository}@{commit}/{file.path} {content}\n")

    @contextmanager
    def _errors(self, hub: Any) -> Iterator[None]:
        """Turns errors of huggingface_hub, which raises those of several libraries, into our own."""
        try:
            yield
        except (PacktrainError, MemoryError):
            raise
        except hub.errors.HFValidationError as error:
            raise UsageError(f"{self} is not the address of a dataset: {error}") from error
        except Exception as error:
            # What is not in the cache, and cannot be fetched, is an entry that is not found, too.
            unreachable = isinstance(error, hub.errors.LocalEntryNotFoundError)
            for name, refusal in () if unreachable else _REFUSALS.items():
                if isinstance(error, getattr(hub.errors, name)):
                    why = refusal.format(address=self, folder=self._start(), hub=hub.constants.ENDPOINT)
                    raise ListError(f"dataset {self.repository} {why}") from error
            why = (str(error) or type(error).__name__).strip().splitlines()[0]
            raise RemoteError(
                f"{hub.constants.ENDPOINT} cannot be reached, or does not answer as it should: {why}. Try again later, "
                "name a mirror in HF_ENDPOINT, or pack files that you have fetched elsewhere"
            ) from error


def _require_hub() -> Any:
    try:
        import huggingface_hub
        import huggingface_hub.errors
        import huggingface_hub.hf_api
    except ImportError as error:
        raise MissingDependency(
            f"hf:// addresses take huggingface_hub, which cannot be imported ({error}): `{extra_command('hub')}`"
        ) from error
    return huggingface_hub
