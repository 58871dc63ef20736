#!/usr/bin/env bash
# What the package promises, tried on a fresh Debian with systemd as its first process, as root:
#   inside.sh OLDER.deb NEWER.deb
# It installs, enrolls, asks, kills, hangs, upgrades under load, downgrades, removes and purges, and measures on the way. Each
# line says what was seen; the last one counts. It changes the machine: use one that can be thrown away.
set -uo pipefail
older=$1 newer=$2
here=$(cd "$(dirname "$0")" && pwd)
export DEBIAN_FRONTEND=noninteractive LC_ALL=C.UTF-8
agent=tallygate-agent.service
sock=/run/tallygate/agent.sock
http=${TALLYGATE_PROVE_PORT:-27080}
twin=http://127.0.0.1:$http
work=$(mktemp -d)
chmod 755 "$work"
passed=0 failed=0

ok() { passed=$((passed + 1)); echo "ok   $*"; }
bad() { failed=$((failed + 1)); echo "FAIL $*"; }
# holds WHAT COMMAND...
holds() {
  local what=$1
  shift
  if "$@" >"$work/out" 2>&1; then ok "$what"; else bad "$what"; tail -n 15 "$work/out" | sed 's/^/     /'; fi
}
fails() { ! "$@"; }
# within SECONDS COMMAND...
within() {
  local end=$((SECONDS + $1))
  shift
  until "$@" >/dev/null 2>&1; do
    [ $SECONDS -lt $end ] || return 1
    sleep 0.1
  done
}
now_ms() { date +%s%3N; }
# As unattended upgrades do: settings that were edited stay.
install_deb() { apt-get install -y -q --no-install-recommends -o Dpkg::Use-Pty=0 -o Dpkg::Options::=--force-confold "$@"; }
version_of() { dpkg-deb -f "$1" Version; }
installed() { [ "$(dpkg-query -W -f '${Version}' tallygate)" = "$1" ]; }
prop() { systemctl show -P "$2" "$1"; }
ask() {
  curl -sS --max-time 90 --unix-socket "$sock" "http://device/elastic/api/v1.1/instances/$instance/access-request" \
    -H 'Content-Type: application/json' \
    -d '{"requester":{"type":"user","value":"anna"},"requestedItems":[{"item":"LaserCut","version":"1.0","count":1}]}'
}
granted() { ask | tee /dev/stderr | grep -q '"status":{"code":"1001"'; }
count_of() { tallygate status --json | sed -n "s/.*\"$1\":\([0-9]*\).*/\1/p"; }
backlog_is() { [ "$(count_of backlog)" = "$1" ]; }

echo "== install $(version_of "$older")"
apt-get update -qq
begun=$(now_ms)
holds 'a fresh machine installs the package and all it needs' install_deb "$older"
echo "     in $(($(now_ms) - begun)) ms"
holds 'the socket and the agent run, and will at the next boot' systemctl is-active tallygate-agent.socket $agent
holds 'they are enabled' systemctl is-enabled tallygate-agent.socket $agent
holds 'the twin is there and neither enabled nor running' fails systemctl is-active tallygate-cloud.service
holds 'nothing else brings a runtime' fails command -v node
holds 'the users are there' getent passwd tallygate tallygate-cloud
holds 'the settings are conffiles' grep -qx ' /etc/tallygate/agent.toml [0-9a-f]*' <(dpkg-query -W -f '${Conffiles}\n' tallygate)
holds 'every file is as it was packed' dpkg --verify tallygate
holds 'units are well formed' systemd-analyze verify --man=no $agent tallygate-agent.socket tallygate-cloud.service
for unit in $agent tallygate-cloud.service; do
  exposure=$(systemd-analyze security --no-pager $unit | sed -n 's/.*Overall exposure level.*: \([0-9.]*\) .*/\1/p')
  holds "$unit is exposed by $exposure, at most 1.5" awk "BEGIN { exit !($exposure <= 1.5) }"
done
holds 'the state is for the agent alone' [ "$(stat -c '%U %a' /var/lib/tallygate/agent)" = 'tallygate 700' ]

echo '== from nothing to an answered access request'
# As a cloud for devices on other machines, which the sandbox must permit.
printf '\n[http]\nhost = "0.0.0.0"\npublic_url = "%s"\nport = %s\n[push]\nport = %s\n' "$twin" "$http" $((http + 3)) >>/etc/tallygate/cloud.toml
holds 'the twin starts' systemctl enable --now tallygate-cloud.service
holds 'it is ready' within 30 curl -sf "$twin/readyz"
key=/var/lib/tallygate/cloud/administration-key.pem
admin="Authorization: Bearer $(tallygate token --admin --key $key)"
json='Content-Type: application/json'
area=$twin/dynamicmonetization/provisioning/api/v1.1
instance=$(curl -sf "$area/instances" -H "$admin" -H "$json" -d '{"shortName":"Workshop","accountId":"me"}' | sed 's/.*"id":"\([^"]*\)".*/\1/')
curl -sf "$area/rate-tables" -H "$admin" -H "$json" -o /dev/null \
  -d '{"version":"1","effectiveFrom":0,"items":[{"name":"LaserCut","version":"1.0","rate":0.001}]}'
curl -sf -X PUT "$area/instances/$instance/line-items" -H "$admin" -H "$json" -o /dev/null \
  -d '{"activationId":"FIRST","state":"DEPLOYED","quantity":1000000,"start":0,"end":253402300799999,"attributes":{"elastic":true,"rateTableSeries":""}}'
token=/etc/tallygate/enrollment-token
new_token() { tallygate devices enrollment-token --url "$twin/dynamicmonetization" --admin-key $key --instance "$instance"; }
headline_says() { tallygate status | head -1 | grep -qF "$1"; }
enrolled() { tallygate status | grep -q FIRST; }
device() { tallygate status --json | sed 's/.*"deviceId":"\([^"]*\)".*/\1/'; }
without_state() {
  systemctl stop $agent
  find /var/lib/tallygate/agent -mindepth 1 -delete
  systemctl start $agent
}
holds 'without a token file, the headline says so' within 10 headline_says "There is no enrollment token: $token does not exist."
new_token >"$work/token"
install -m 600 -o root "$work/token" $token
systemctl reload $agent
holds 'a token file that only root can read is named, with the command that fixes it' within 10 headline_says "may not read $token: run chown $(id -u tallygate) $token as root"
holds 'doctor names it, too' sh -c "tallygate doctor | grep -q 'may not read $token'"
echo nonsense | install -m 400 -o tallygate /dev/stdin $token
systemctl reload $agent
holds 'a file without a token is named' within 10 headline_says "$token contains no enrollment token: it is not a JWT."
install -m 644 -o tallygate "$work/token" $token
holds 'doctor reports that every user can read the token' sh -c "tallygate doctor | grep -q '$token (0644'"
systemctl reload $agent
holds 'the step is repeated with a token, and the device enrolls' within 30 enrolled
holds 'the journal reports that every user could read the token' sh -c "journalctl -u $agent -o cat | grep -qF 'in $token (mode 0644)'"
first=$(device)
systemctl restart $agent
holds 'with its used token still there, the device stays enrolled' within 10 [ "$(device)" = "$first" ]
without_state
holds 'a token that another device has used is refused, and its file is named' within 30 headline_says "The cloud refused the enrollment token in $token. This enrollment token was used by another device."
new_token | install -m 400 -o tallygate /dev/stdin $token
systemctl reload $agent
holds 'with a new token the device enrolls' within 30 enrolled
without_state
new_token >$token
chmod 600 $token
openssl genpkey -algorithm ed25519 -out /etc/tallygate/device-key.pem 2>/dev/null
chmod 600 /etc/tallygate/device-key.pem
# Sooner than an operator would want it, for the sake of those who wait.
printf '\n[sync]\ninterval = "2s"\n' >>/etc/tallygate/agent.toml
systemctl stop $agent
rm /var/lib/tallygate/agent/device.key
mkdir -p /etc/systemd/system/$agent.d
cp /usr/share/doc/tallygate/examples/credentials.conf /etc/systemd/system/$agent.d/
systemctl daemon-reload
holds 'the agent starts anew with key and token as credentials that only root can read' systemctl restart $agent
holds 'it enrolls and gets tokens' within 30 sh -c 'tallygate status | grep -q FIRST'
holds 'it uses the key that it was handed, and has made none' [ ! -e /var/lib/tallygate/agent/device.key ]
holds 'an access request is granted' granted
useradd --system --groups tallygate application 2>/dev/null
useradd --system stranger 2>/dev/null
holds 'a member of the group may ask' setpriv --reuid application --regid application --init-groups curl -sf --unix-socket $sock http://device/livez
holds 'anybody else may not' fails setpriv --reuid stranger --regid stranger --init-groups curl -sf --unix-socket $sock http://device/livez
holds 'the kernel identifies the caller, sandbox or not' sh -c "printf '[callers]\nuse = \"user:application\"\n' >>/etc/tallygate/agent.toml; systemctl restart $agent"
holds 'who is not named is refused' sh -c "setpriv --reuid tallygate-cloud --regid tallygate --clear-groups curl -s --unix-socket $sock http://device/elastic/api/v1.1/instances/$instance/access-request -H '$json' -d '{}' | grep -q CALLER_NOT_ALLOWED"
sed -i '/^\[callers\]$/,$d' /etc/tallygate/agent.toml
systemctl restart $agent
holds 'a reload finds its way to the agent' systemctl reload $agent
holds 'which reads its settings again' within 10 sh -c "journalctl -u $agent -o cat | grep -q 'settings reloaded'"
holds 'systemctl status says how the device is' within 30 sh -c "systemctl status $agent | grep -q 'Status: \"This device is working'"

pid=$(prop $agent MainPID)
started=$((($(prop $agent ActiveEnterTimestampMonotonic) - $(prop $agent InactiveExitTimestampMonotonic)) / 1000))
echo "     start $started ms; PSS $(awk '/^Pss:/ { printf "%.1f", $2 / 1024 }' /proc/$pid/smaps_rollup) MiB, of it anonymous $(awk '/^Pss_Anon:/ { printf "%.1f", $2 / 1024 }' /proc/$pid/smaps_rollup) MiB"
echo "     package $(stat -c %s "$newer" | awk '{ printf "%.1f", $1 / 1e6 }') MB, installed $(dpkg-query -W -f '${Installed-Size}' tallygate | awk '{ printf "%.1f", $1 / 1024 }') MiB"

echo '== killed, and hung'
kill -9 "$pid"
holds 'after kill -9 the next call is answered, without having been refused' granted
holds 'by another process' [ "$(prop $agent MainPID)" != "$pid" ]
pid=$(prop $agent MainPID)
begun=$(now_ms)
kill -STOP "$pid"
holds 'a call to an agent that hangs is answered once the watchdog has started another one' granted
echo "     after $((($(now_ms) - begun) / 1000)) s, with WatchdogSec=$(prop $agent WatchdogUSec)"
holds 'the watchdog did it' sh -c "journalctl -u $agent -o cat | grep -q 'Watchdog timeout'"
holds 'no core was left' fails sh -c 'find / /var/lib/tallygate -xdev -maxdepth 4 \( -name core -o -name "core.*" \) -type f -newer /etc/tallygate/device-key.pem | grep .'

echo "== upgrade to $(version_of "$newer") under load"
/usr/lib/tallygate/runtime/node "$here/load.ts" $sock "$instance" "$work/over" 8 >"$work/load.json" &
load=$!
sleep 2
begun=$(now_ms)
holds 'the newer version is installed' install_deb "$newer"
echo "     in $(($(now_ms) - begun)) ms"
holds 'two restarts follow' sh -c "systemctl restart $agent && sleep 1 && systemctl restart $agent"
sleep 2
touch "$work/over"
wait $load
echo "     $(cat "$work/load.json")"
holds 'no call has failed' grep -q '"failed":0,' "$work/load.json"
holds 'the newer version runs' installed "$(version_of "$newer")"
holds 'settings that were edited were kept' grep -q "port = $http" /etc/tallygate/cloud.toml
holds 'everything arrives in the cloud' within 60 backlog_is 0
holds 'the ledger is whole' tallygate verify

echo '== downgrade'
holds 'to a version that can read the ledger it is allowed' install_deb --allow-downgrades "$older"
holds 'and answers' granted
systemctl stop tallygate-cloud.service
holds 'forth again' install_deb "$newer"
holds 'a twin that was stopped stays stopped' fails systemctl is-active tallygate-cloud.service
systemctl start tallygate-cloud.service
systemctl stop $agent tallygate-agent.socket
ledger=/var/lib/tallygate/agent/journal.db
schema() { printf "\\0\\0\\0\\$(printf '%03o' "$1")" | dd of=$ledger bs=1 seek=60 conv=notrunc status=none; }
was=$(od -An -tu1 -j63 -N1 $ledger | tr -d ' ')
schema 99
holds 'to one that cannot it is refused' fails install_deb --allow-downgrades "$older"
holds 'and the installed version stays' installed "$(version_of "$newer")"
holds 'and so does the agent that was stopped' [ "$(prop $agent ActiveState)" = inactive ]
schema "$was"
holds 'which goes on serving' sh -c "systemctl start tallygate-agent.socket $agent"
holds 'with its ledger' granted

echo '== a start that takes longer than its time'
systemctl stop $agent tallygate-agent.socket
/usr/lib/tallygate/runtime/node "$here/padding.ts" $ledger
chown tallygate: $ledger*
drop=/run/systemd/system/$agent.d
mkdir -p $drop
printf '[Service]\nTimeoutStartSec=10s\n' >$drop/short.conf
systemctl daemon-reload
cursor=$(journalctl -n 0 --show-cursor | sed -n 's/^-- cursor: //p')
begun=$(now_ms)
systemctl start --no-block $agent
checks() { journalctl -u $agent -o cat --after-cursor "$cursor" | grep -q 'checking the ledger'; }
holds 'the agent checks a large ledger' within 10 checks
pid=$(prop $agent MainPID)
# Disks of devices are slower: the process runs a twentieth of the time.
while [ "$(prop $agent ActiveState)" = activating ] && [ "$pid" -gt 1 ]; do
  kill -STOP "$pid"
  sleep 0.4
  kill -CONT "$pid"
  sleep 0.02
done &
slow=$!
holds 'callers get the progress' within 10 sh -c "curl -s --max-time 8 --unix-socket $sock http://device/livez | grep -q AGENT_STARTING"
holds 'systemctl status shows it' within 10 sh -c "systemctl status $agent | grep -q 'Status: \"The agent starts: it is checking its ledger'"
holds 'the agent starts' within 120 systemctl is-active $agent
wait $slow
echo "     after $((($(now_ms) - begun) / 1000)) s, with TimeoutStartSec=$(prop $agent TimeoutStartUSec)"
holds 'the check took longer than TimeoutStartSec' [ $(($(now_ms) - begun)) -gt 10000 ]
holds 'in one process' [ "$(prop $agent MainPID)" = "$pid" ]
systemctl stop $agent tallygate-agent.socket
/usr/lib/tallygate/runtime/node "$here/padding.ts" $ledger --remove
chown tallygate: $ledger*
rm -r $drop
systemctl daemon-reload
systemctl start $agent
holds 'and grants' granted

echo '== removed and purged'
systemctl stop tallygate-cloud.service
holds 'offline it goes on deciding' granted
holds 'with usage that is not in the cloud it is purged' apt-get purge -y -q tallygate
holds 'and its ledger is left' [ -s $ledger ]
holds 'nothing of it runs' fails systemctl is-active tallygate-agent.socket $agent tallygate-cloud.service
holds 'installed again it goes on from there' install_deb "$newer"
printf '\n[sync]\ninterval = "2s"\n' >>/etc/tallygate/agent.toml
systemctl restart $agent
printf '\n[http]\nport = %s\n[push]\nport = %s\n' "$http" $((http + 3)) >>/etc/tallygate/cloud.toml
systemctl start tallygate-cloud.service
holds 'and delivers what it had' within 90 backlog_is 0
holds 'with everything delivered it is purged' apt-get purge -y -q tallygate
holds 'and leaves nothing of the device' [ ! -e /var/lib/tallygate/agent ]
holds 'the accounts of the twin stay' [ -s /var/lib/tallygate/cloud/twin.db ]
holds 'no socket, no unit, no settings of the package are left' sh -c '[ ! -e /run/tallygate ] && [ ! -e /etc/tallygate/agent.toml ] && ! systemctl cat tallygate-agent.service'
holds 'no unit that is gone is enabled' [ -z "$(find /etc/systemd/system -type l -lname '*tallygate*')" ]
holds 'the journal has no error of the agent' sh -c "journalctl -u $agent -o cat | grep '^{' | grep -v '\"level\":[1-4]0' >$work/errors; [ ! -s $work/errors ] || { head -5 $work/errors; false; }"
rm -rf "$work"
echo "$passed passed, $failed failed"
[ "$failed" -eq 0 ]
