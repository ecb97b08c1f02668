"""Turns annotations in the JSON format of COCO into a list that packtrain packs.

    python coco.py instances_train.json train.jsonl
    packtrain pack train.jsonl out --root train2017 --image path --array boxes --array classes

Each line of the list is an image, with these columns: `path`; `boxes`, left, top, width and height of each object in
pixels; `classes`, a whole number per object; `caption`, the first caption if there are captions; `captions`, all of
them; and `meta`, what else COCO says about the image. The names of the classes go to a file of their own,
`train.classes.txt`.
"""

from __future__ import annotations

import argparse
import csv
import json
from collections import defaultdict
from collections.abc import Iterator
from pathlib import Path
from typing import Any


def rows(annotations: dict[str, Any]) -> Iterator[dict[str, Any]]:
    """Yields a row per image, in the order of the file. An image without objects has empty lists."""
    classes = {category["id"]: number for number, category in enumerate(annotations.get("categories", []))}
    of_image: dict[int, list[dict[str, Any]]] = defaultdict(list)
    for annotation in annotations.get("annotations", []):
        of_image[annotation["image_id"]].append(annotation)
    for image in annotations["images"]:
        found = of_image[image["id"]]
        objects = [annotation for annotation in found if "bbox" in annotation]
        captions = [annotation["caption"] for annotation in found if "caption" in annotation]
        yield {
            "path": image["file_name"],
            "boxes": [annotation["bbox"] for annotation in objects],
            "classes": [classes[annotation["category_id"]] for annotation in objects],
            "caption": captions[0] if captions else None,
            "captions": captions,
            "meta": {key: value for key, value in image.items() if key != "file_name"},
        }


def write(annotations: dict[str, Any], out: Path) -> int:
    """Writes the list: JSON lines, or CSV if the suffix of `out` says so. Returns the number of rows."""
    listed = list(rows(annotations))
    with out.open("w", encoding="utf-8", newline="") as file:
        if out.suffix == ".csv":
            table = csv.DictWriter(file, listed[0])
            table.writeheader()
            # Lists and objects are JSON in their cells.
            table.writerows({key: _cell(value) for key, value in row.items()} for row in listed)
        else:
            file.writelines(json.dumps(row, ensure_ascii=False) + "\n" for row in listed)
    names = [category["name"] for category in annotations.get("categories", [])]
    out.with_suffix(".classes.txt").write_text("".join(f"{name}\n" for name in names), encoding="utf-8")
    return len(listed)


def _cell(value: Any) -> Any:
    return json.dumps(value) if isinstance(value, list | dict) else value


def main() -> None:
    parser = argparse.ArgumentParser(description="Turns COCO annotations into a list for packtrain.")
    parser.add_argument("annotations", type=Path, help="such as instances_train2017.json or captions_train2017.json")
    parser.add_argument("out", type=Path, help="the list: .jsonl or .csv")
    arguments = parser.parse_args()
    count = write(json.loads(arguments.annotations.read_bytes()), arguments.out)
    print(f"{arguments.out}: {count} images")


if __name__ == "__main__":
    main()
