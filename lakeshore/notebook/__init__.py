"""The notebook: magics, panels, the worker in the kernel; the only room that imports IPython."""
