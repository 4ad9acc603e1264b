"""The side-by-side page of a port."""

import re
from html.parser import HTMLParser

from click.testing import CliRunner
from projects import lay

from dlrun.cli.port import command
from dlrun.port.files import port_tree, read_and_port
from dlrun.port.page import page


class Cells(HTMLParser):
    """The texts of the cells of both sides, by file."""

    def __init__(self):
        super().__init__()
        self.side, self.texts, self.before, self.after = "", [], [], []

    def handle_starttag(self, tag, attributes):
        self.side = dict(attributes).get("class", "") if tag == "td" else self.side

    def handle_data(self, data):
        {"before": self.before, "after": self.after}.get(self.side, self.texts).append(data)

    def handle_endtag(self, tag):
        self.side = "" if tag == "td" else self.side


def test_the_page_shows_both_sides_of_every_file_and_why(tmp_path):
    ported = read_and_port(lay(tmp_path))
    text = page(ported)
    cells = Cells()
    cells.feed(text)
    assert "    dl.broadcast(model, optimizer)  # every rank starts from rank 0's state" in cells.after
    assert "    return torch.optim.SGD(model.parameters(), lr=lr, momentum=0.9)" in cells.before
    assert "    return torch.optim.SGD(model.parameters(), lr=dl.lr_scale(lr), momentum=0.9)" in cells.after
    for edit in ported.edits:
        assert edit.why.replace("'", "&#39;") in text
    assert [f for f in re.findall("<h2>(.*)</h2>", text) if f.startswith("lab/")] == [m.file for m in ported.modules]
    assert not re.search(r"(src|href)=|https?:|@import", text), "the page needs nothing from outside"


def test_each_side_has_the_name_of_its_file_at_its_head(tmp_path):
    script = lay(tmp_path / "project")
    ported = port_tree(script, tmp_path / "out")
    heads = re.findall(r"<thead><tr><th></th><th>(.*?)</th><th></th><th>(.*?)</th></tr></thead>", page(ported))
    assert heads[0] == (str(script), script.name)
    assert heads[1:] == [(m.file, f"{m.file}, ported") for m in ported.modules]


def test_text_of_the_script_is_never_taken_for_html(tmp_path):
    script = lay(tmp_path)
    script.write_text(script.read_text().replace("best = 0.0", "best = 0.0  # <script>alert(1)</script>"))
    assert "<script>" not in page(read_and_port(script))


def test_the_command_writes_the_page_with_and_without_the_port(tmp_path):
    script = lay(tmp_path / "project")
    file = tmp_path / "page.html"
    assert CliRunner().invoke(command, ["--diff", "--html", str(file), str(script)]).exit_code == 0
    assert file.read_text().startswith("<!doctype html>")
    result = CliRunner().invoke(command, ["--html", str(tmp_path / "no" / "x"), "--diff", str(script)])
    assert "There is no folder" in result.output
