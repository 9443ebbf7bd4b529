"""The command `ferroce`: becomes the program that the wheel carries."""

import os
import sys

from . import command


def main():
    os.execv(command(), ["ferroce"] + sys.argv[1:])


if __name__ == "__main__":
    main()
