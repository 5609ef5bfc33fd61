#!/bin/sh
# The kernels of the image go to the cache, which may be an empty volume: measurements are kept beside them.
set -eu
if [ -d /opt/kernels ] && [ -w "$(dirname "$SLUICE_KERNEL_CACHE")" ]; then
    mkdir -p "$SLUICE_KERNEL_CACHE"
    cp -Rn /opt/kernels/. "$SLUICE_KERNEL_CACHE/"
elif [ -d /opt/kernels ]; then
    export SLUICE_KERNEL_CACHE=/opt/kernels
fi
exec sluice "$@"
