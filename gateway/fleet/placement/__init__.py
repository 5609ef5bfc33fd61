"""Engines that Ray places on the hosts of a cluster, and how many of them there are."""
