"""The calls that write files, by their names."""

from __future__ import annotations

import re

# Calls that write, and nothing else: rank 0 makes them, the arguments are evaluated on every rank.
WRITES = re.compile(
    r"^(matplotlib\.pyplot\.(savefig|show|pause|imsave)|numpy\.(save|savez|savez_compressed|savetxt)|(scipy\.misc|skimage\.io)\.imsave|"
    r"torchvision\.utils\.save_image|json\.dump|pickle\.dump|yaml\.dump|imageio(\.v[23])?\.(imwrite|mimwrite|volwrite|imsave|mimsave|volsave)|cv2\.imwrite|"
    r"shutil\.(copy|copyfile|copy2|copytree|move|rmtree)|os\.(remove|unlink|rename|rmdir|replace)|scipy\.io\.savemat|"
    r"scipy\.sparse\.save_npz|(joblib|dill|toml|yaml\.safe)[._]dump|torch\.(onnx\.export|jit\.save)|plotly\.io\.write_image|"
    r"nibabel(\.loadsave)?\.save|SimpleITK\.WriteImage|tifffile\.im(write|save)|soundfile\.write|torchaudio\.save|"
    r"scipy\.io\.wavfile\.write|ase\.io\.write|Bio\.\w+\.write|pandas\.ExcelWriter|omegaconf\.OmegaConf\.save|"
    r"torch\.utils\.tensorboard(\.writer)?\.SummaryWriter|tensorboardX\.SummaryWriter|"
    r"tensorflow\.(summary\.(FileWriter|create_file_writer)|train\.SummaryWriter)|safetensors\.torch\.save_file|"
    r"tensorboard_logger\.(configure|log_value|Logger)|neptune\.\w+|mlflow\.\w+|csv\.writer|sys\.stdout\.write|logging\.(handlers\.\w*)?FileHandler|matplotlib\.pyplot\.imsave|visdom\.Visdom)$"
)
METHODS = ("savefig", "write_image", "write_html", "to_csv", "to_pickle", "to_excel", "to_json", "write_text",
           "write_bytes", "save_pretrained", "push_to_hub", "to_parquet", "to_feather", "to_hdf", "to_netcdf",
           "to_zarr", "writeto", "tofile")  # fmt: skip
MODELS = ("save", "save_weights", "save_model", "to_disk")  # of Keras
# Functions of modules that are out of sight, which say by their name that they write.
SAVES = re.compile(
    r"^(?!torch\.|tensorflow\.|keras\.|\.)[\w.]+\.save_(checkpoint|ckpt|model|network|weights|state|images?)$"
)
# What makes pictures, films and compiled models, which save themselves.
PICTURES = re.compile(
    r"^(PIL\.Image\.\w+|torch\.jit\.(script|trace)|matplotlib\.animation\.\w+Animation|"
    r"torchvision\.transforms\.(functional\.)?\w*pil\w*)$", re.I
)
