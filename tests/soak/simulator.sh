#!/bin/sh
# The simulator's tests in full: AMoE's whole table, 150 random deployments, 10,000 workers.
set -eu
cd "$(dirname "$0")/../.."
nice build/tests/test_sim_deploy full
