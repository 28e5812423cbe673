#!/usr/bin/env bash
# run.sh: a real Redisson client behind one JSON line an order; README.md has the orders.
#
#   run.sh redis://127.0.0.1:6379   starts it; the first use builds it, which takes a while and needs the network
#   run.sh --build                  only builds; from then on nothing is downloaded
#
# Needs a JDK (17 or newer), Maven and flock. PEER_TARGET=<dir> builds elsewhere than in target/; REDISSON_VERSION=3.27.0
# takes another release than the one in pom.xml, and needs a PEER_TARGET of its own. Several starts at once are safe: one
# builds, the others wait for it.
set -euo pipefail
here=$(cd "$(dirname "${BASH_SOURCE[0]}")" && pwd)
target=${PEER_TARGET:-$here/target}
classpath=$target/classpath.txt

is_built() { [[ -f $classpath && -z $(find "$here/src" "$here/pom.xml" -newer "$classpath" -print -quit) ]]; }

maven() {
    mvn -q -B -f "$here/pom.xml" -Dpeer.target="$target" ${REDISSON_VERSION:+-Dredisson.version="$REDISSON_VERSION"} "$@" >&2
}

mkdir -p "$target"
(
    flock 9
    if ! is_built; then
        maven compile
        maven org.apache.maven.plugins:maven-dependency-plugin:3.6.1:build-classpath -Dmdep.outputFile="$classpath.new"
        # Last and in one step: while it is there, the build is complete.
        mv "$classpath.new" "$classpath"
        touch "$classpath"
    fi
) 9>"$target/.lock"
[[ ${1:-} == --build ]] && exit 0
exec java -Xmx256m -cp "$target/classes:$(<"$classpath")" peer.Peer --redis="${1:?a redis:// address, or --build}"
