#!/bin/sh
# Brings the database's schema up to date. The first time it also makes an admin key (the file admin_key) and a tenant with
# a key for chats (the file key), both beside the secrets.
set -eu
umask 077
config="--config /etc/sluice/sluice.toml"
cd /var/lib/sluice
sluice migrate $config
if [ ! -e admin_key ]; then
    sluice bootstrap $config >admin_key.new
    mv admin_key.new admin_key
fi
if [ ! -e key ]; then
    sluice tenant create default $config || sluice tenant list $config | grep -q '^default'
    sluice key create default $config >key.new
    mv key.new key
fi
