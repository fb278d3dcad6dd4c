// SPDX-License-Identifier: Apache-2.0
// Copyright The Outrigger Authors

package capture

import (
	"bytes"
	"net"
	"net/netip"
	"os"
	"os/user"
	"path/filepath"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	"github.com/google/go-cmp/cmp/cmpopts"
	"github.com/spf13/pflag"
)

// testSystem returns a system with the user and group web, number 4000, without istio-proxy.
// Besides a loopback and a link-local address, it has two addresses.
func testSystem() system {
	return system{
		addresses: func() ([]net.Addr, error) {
			return []net.Addr{&net.IPNet{IP: net.IPv6loopback}, &net.IPNet{IP: net.ParseIP("fe80::1")}, &net.IPNet{IP: net.ParseIP("10.0.0.1")}, &net.IPNet{IP: net.ParseIP("fd00::1")}}, nil
		},
		lookupUser: func(name string) (*user.User, error) {
			if name == "web" {
				return &user.User{Uid: "4000"}, nil
			}
			return nil, user.UnknownUserError(name)
		},
		lookupGroup: func(name string) (*user.Group, error) {
			if name == "web" {
				return &user.Group{Gid: "4000"}, nil
			}
			return nil, user.UnknownGroupError(name)
		},
		resolvConf: func() ([]byte, error) {
			return []byte("# comment\nnameserver 10.0.0.53\nnameserver\nnameserver x\nnameserver fe80::53%eth0\noptions ndots:5\n"), nil
		},
	}
}

// read parses a command line, in which two single quotes are an empty argument.
func read(t *testing.T, add func(*Flags, *pflag.FlagSet), line string, environ ...string) (*Settings, []string, error) {
	t.Helper()
	return readOn(t, testSystem(), add, line, environ...)
}

func readOn(t *testing.T, system system, add func(*Flags, *pflag.FlagSet), line string, environ ...string) (*Settings, []string, error) {
	t.Helper()
	var f Flags
	fs := pflag.NewFlagSet("istio-iptables", pflag.ContinueOnError)
	add(&f, fs)
	args := strings.Fields(line)
	for i := range args {
		args[i] = strings.ReplaceAll(args[i], "''", "")
	}
	if err := fs.Parse(args); err != nil {
		t.Fatal(err)
	}
	env := environment(environ)
	if err := f.fromEnvironment(env); err != nil {
		return nil, nil, err
	}
	return f.settings(env, system)
}

// TestSettings checks that each command line and environment have the same meaning as the other
// command line of the case.
func TestSettings(t *testing.T) {
	t.Parallel()
	for _, c := range []struct {
		line    string
		environ []string
		other   string
	}{
		{"-u 1337 -g 1337 -p 15001 -z 15006 -e 15008 -t 1337 -r 133", nil, ""},
		{"", []string{"PROXY_UID=5,web", "ENVOY_PORT=1"}, "-u 5,4000 -g 5,4000 -p 1"},
		{"-u 7", []string{"PROXY_UID=5"}, "-u 7"},
		{"-b ''", []string{"ISTIO_INBOUND_PORTS=*"}, ""},
		{"", []string{"ISTIO_INBOUND_PORTS=", "ENVOY_USER=web"}, "-u 4000"},
		{"-b 80,,81,", []string{"ENVOY_USER=nobody-here"}, "-b 80,81"},
		{"", []string{"ENVOY_USER=60706"}, "-u 60706"},
		{"--force-legacy-iptables", nil, "--force-iptables-binary=legacy"},
		{"", []string{"FORCE_IPTABLES_BINARY=iptables-nft", "RECONCILE=true"}, "--force-iptables-binary=nft --reconcile"},
		{"-m TPROXY", nil, "--istio-inbound-interception-mode TPROXY"},
		{"-m tproxy", nil, "-m REDIRECT"},
		{"", []string{"ISTIO_META_DNS_CAPTURE=true"}, "--redirect-dns"},
		{"", []string{"REDIRECT_DNS=false", "ISTIO_META_DNS_CAPTURE=true"}, ""},
		{"--redirect-dns=false", []string{"ISTIO_META_DNS_CAPTURE=true"}, ""},
		{"", []string{"INVALID_DROP=true"}, "--drop-invalid"},
		{"", []string{"ISTIO_AGENT_DUAL_STACK=true"}, "--dual-stack"},
		{"", []string{"ISTIO_DUAL_STACK=1"}, "--dual-stack"},
		{"", []string{"ISTIO_OUTBOUND_OWNER_GROUPS=*", "ISTIO_OUTBOUND_IPV4_LOOPBACK_CIDR=127.0.0.1/32"}, ""},
		{"-i 10.0.0.1", nil, "-i 10.0.0.1/32"},
		{"-i 10.0.0.1/8", nil, "-i 10.0.0.0/8"},
		{"--cni-mode --force-apply --native-nftables --host-nsenter-exec", nil, ""},
	} {
		got, warnings, err := read(t, (*Flags).Add, c.line, c.environ...)
		if err != nil || len(warnings) > 0 {
			t.Errorf("%s %q: %q, %v", c.line, c.environ, warnings, err)
			continue
		}
		want, _, err := read(t, (*Flags).Add, c.other)
		if err != nil {
			t.Fatal(err)
		}
		if diff := cmp.Diff(want, got, cmpopts.EquateComparable(netip.Prefix{}, netip.Addr{})); diff != "" {
			t.Errorf("%s %q is not %q:\n%s", c.line, c.environ, c.other, diff)
		}
	}
}

// TestSettingsOfTheSystem checks settings that come from the environment or the system alone, and
// those of the removal.
func TestSettingsOfTheSystem(t *testing.T) {
	t.Parallel()
	s, _, err := read(t, (*Flags).Add, "--redirect-dns --dual-stack", "ISTIO_OUTBOUND_OWNER_GROUPS=web,5", "ISTIO_OUTBOUND_OWNER_GROUPS_EXCLUDE=6")
	if err != nil {
		t.Fatal(err)
	}
	if !s.IPv6 || len(s.Resolvers) != 2 || s.Resolvers[1].String() != "fe80::53" || !cmp.Equal(s.Groups, []uint32{4000, 5}) || !cmp.Equal(s.ExcludeGroups, []uint32{6}) {
		t.Errorf("settings: %+v", s)
	}
	s, warnings, err := read(t, (*Flags).Add, "-i 10.0.0.0/8,x,fd00::/8 -x ::ffff:1.2.3.4/128")
	if err != nil || s.IPv6 || len(s.IncludeRanges) != 2 || len(warnings) != 2 {
		t.Errorf("settings: %+v, %q, %v", s, warnings, err)
	}
	s, _, err = read(t, (*Flags).AddRemoval, "-u 5 --redirect-dns", "INBOUND_TPROXY_MARK=9", "INBOUND_INTERCEPTION_MODE=TPROXY", "ISTIO_OUTBOUND_OWNER_GROUPS=5")
	if err != nil || !s.Remove || s.TProxyMark != 9 || !s.TProxy {
		t.Errorf("settings of the removal: %+v, %v", s, err)
	}
}

// TestInvalidSettings checks that the error contains the flag or variable, its value and the valid
// values.
func TestInvalidSettings(t *testing.T) {
	t.Parallel()
	many := strings.Repeat("1,", maxWords+1)
	for _, c := range []struct{ line, environ, want string }{
		{"-p 0", "", `--envoy-port is "0": it must be a port from 1 to 65535`},
		{"-b 80,http", "", `--istio-inbound-ports is "http": it must be a port`},
		{"-d *", "", `--istio-local-exclude-ports is "*"`},
		{"-z 15001", "", "--envoy-port and --inbound-capture-port are both 15001"},
		{"-q " + many, "", "--istio-outbound-ports has 1001 values: 1000 are possible"},
		{"-x *", "", `--istio-service-exclude-cidr is "*": it must be CIDRs`},
		{"-u nobody-here", "", `--proxy-uid has "nobody-here"`},
		{"-u 5000000000", "", `--proxy-uid has "5000000000"`},
		{"-c a-name-that-is-too-long", "", "it must be the name of an interface"},
		{"-m TPROXY -t 0", "", "--istio-inbound-tproxy-mark is 0"},
		{"-m TPROXY -t 1338", "", "--istio-inbound-tproxy-mark is 1338"},
		{"-m TPROXY -r 255", "", "--istio-inbound-tproxy-route-table is 255"},
		{"--force-iptables-binary x", "", `--force-iptables-binary is "x": it must be legacy or nft`},
		{"--run-validation --probe-timeout 0s", "", "--probe-timeout is 0s: it must be longer than 0"},
		{"", "REDIRECT_DNS=maybe", `the environment variable REDIRECT_DNS is "maybe": it must be a bool, as for --redirect-dns`},
		{"", "ISTIO_OUTBOUND_OWNER_GROUPS=nobody-here", `ISTIO_OUTBOUND_OWNER_GROUPS has "nobody-here"`},
		{"", "ISTIO_OUTBOUND_OWNER_GROUPS=" + many[:2*(maxGroups+1)], "ISTIO_OUTBOUND_OWNER_GROUPS has 65 groups: 64 are possible"},
		{"", "ISTIO_EXCLUDE_INTERFACES=a\n-A", `has "a\n-A": it must be the name of an interface`},
		{"", "ISTIO_OUTBOUND_IPV4_LOOPBACK_CIDR=10.0.0.0/8", "it must be a CIDR within 127.0.0.0/8"},
	} {
		_, _, err := read(t, (*Flags).Add, c.line, c.environ)
		if err == nil || !strings.Contains(err.Error(), c.want) {
			t.Errorf("%.40s %.60s: %v, want %s", c.line, c.environ, err, c.want)
		}
	}
}

// FuzzSettings checks that rules can be generated from all settings that are accepted.
func FuzzSettings(f *testing.F) {
	f.Add("80,*", "10.0.0.0/8,fd00::/8", "0,root", "eth0,+")
	f.Fuzz(func(t *testing.T, ports, ranges, ids, interfaces string) {
		s, _, err := read(t, (*Flags).Add, "", "ISTIO_INBOUND_PORTS="+ports, "ISTIO_SERVICE_CIDR="+ranges, "PROXY_UID="+ids, "ISTIO_EXCLUDE_INTERFACES="+interfaces)
		if err == nil {
			_ = s.Rules()
		}
	})
}

// TestDryRun checks that a dry run prints the rules and writes them to a file.
func TestDryRun(t *testing.T) {
	t.Parallel()
	file := filepath.Join(t.TempDir(), "rules")
	s, _, err := read(t, (*Flags).Add, "-n -b 80 -i 10.0.0.0/8,fd00::/8 --dual-stack --redirect-dns", "DRY_RUN_FILE_PATH="+file)
	if err != nil {
		t.Fatal(err)
	}
	var out bytes.Buffer
	if err := dryRun(s, &out); err != nil {
		t.Fatal(err)
	}
	written, err := os.ReadFile(file)
	if err != nil || string(written) != out.String() {
		t.Errorf("the file has %q, %v", written, err)
	}
	for _, want := range []string{
		"# iptables-restore --noflush\n* raw\n", "# ip6tables-restore --noflush\n", "-N ISTIO_REDIRECT\n", "-A ISTIO_OUTPUT -d 10.0.0.0/8 -j ISTIO_REDIRECT\n",
		"-A ISTIO_OUTPUT -d fd00::/8 -j ISTIO_REDIRECT\n", "-A OUTPUT -p udp -d 10.0.0.53/32 --dport 53 -j REDIRECT --to-ports 15053\n", "COMMIT\n",
		"-A ISTIO_OUTPUT -p tcp -o lo ! -d ::1/128 -m multiport ! --dports 53,15008 -m owner --uid-owner 1337 -j ISTIO_IN_REDIRECT\n",
	} {
		if !strings.Contains(out.String(), want) {
			t.Errorf("%q is missing in\n%s", want, out.String())
		}
	}
	if s, _, err = read(t, (*Flags).Add, "-n -b 80 --restore-format=false"); err != nil {
		t.Fatal(err)
	}
	out.Reset()
	if err := dryRun(s, &out); err != nil || !strings.Contains(out.String(), "\niptables -t nat -A ISTIO_INBOUND -p tcp --dport 80 -j ISTIO_IN_REDIRECT\n") {
		t.Errorf("commands, %v:\n%s", err, out.String())
	}
}
