// SPDX-License-Identifier: Apache-2.0
// Copyright The Outrigger Authors

package capture

import (
	"bytes"
	"fmt"
	"log/slog"
	"math/rand/v2"
	"os/exec"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	"github.com/google/go-cmp/cmp/cmpopts"
	"github.com/google/nftables"
)

// variants returns the variants of iptables on this machine, or skips the test if there are none.
func variants(t *testing.T) []string {
	t.Helper()
	found := installedVariants(t)
	if len(found) == 0 {
		t.Skip("no variant of iptables is in PATH")
	}
	return found
}

// installedVariants returns the variants of iptables on this machine.
func installedVariants(t *testing.T) (found []string) {
	t.Helper()
	for _, variant := range []string{iptablesNFT, iptablesLegacy} {
		name, err := exec.LookPath("iptables-" + variant + "-restore")
		if err != nil {
			t.Logf("left out: %v", err)
			continue
		}
		if out, err := exec.Command(name, "--version").CombinedOutput(); err != nil {
			t.Logf("left out: %s: %v: %s", name, err, out)
			continue
		}
		found = append(found, variant)
	}
	return found
}

// combinations returns command lines and environments with pseudo-random settings, which are the
// same in every run.
func combinations(n int) (all [][2]string) {
	random := rand.New(rand.NewPCG(1, 2))
	pick := func(choices ...string) string { return choices[random.IntN(len(choices))] }
	for range n {
		line := strings.Join([]string{
			pick("", "-m REDIRECT", "-m TPROXY", "-m TPROXY -t 77 -r 200"),
			pick("-b *", "-b *", "-b 80,8080", ""),
			pick("-d 15020", "-d 15020,9000", ""),
			pick("-i *", "-i *", "-i 10.96.0.0/16,fd00::/16", "-i 127.0.0.0/8,10.97.0.1/32", ""),
			pick("-x 10.96.0.0/16", "-x fd00:96::1/128,10.97.0.0/17", "", ""),
			pick("-q 443", "", ""), pick("-o 9000,443", "", ""),
			pick("-u 1337", "-u 1000 -g 1337", "-u 1337,1001 -g 2000", ""),
			pick("-c eth0", "-c eth+", "", "", "", ""), pick("-k eth0", "", "", "", ""),
			pick("--redirect-dns", "--redirect-dns --capture-all-dns", "", ""),
			pick("--dual-stack", "--dual-stack", ""), pick("--drop-invalid", ""), pick("--iptables-trace-logging", "", ""),
		}, " ")
		env := pick("A=", "A=", "ISTIO_OUTBOUND_OWNER_GROUPS=1000,2000", "ISTIO_OUTBOUND_OWNER_GROUPS_EXCLUDE=1000", "ISTIO_OUTBOUND_IPV4_LOOPBACK_CIDR=127.0.0.0/8")
		if strings.Contains(line, "TPROXY") {
			// TPROXY and the redirection of a guest both apply to its packets, as with
			// istio-iptables. Where the packets end is undefined, and some are lost.
			line = strings.ReplaceAll(line, "-k eth0", "")
		}
		all = append(all, [2]string{line, env})
	}
	return all
}

// verdicts returns where a set of connections ends.
func (l *lab) verdicts(t *testing.T) (all []string) {
	t.Helper()
	pod4, pod6 := l.pod.IP4, l.pod.IP6
	for _, p := range []probe{
		l.out(80), l.out(443), l.out(9000), l.in(80), l.in(9000), l.in(15008), l.in(15020),
		{from: l.pod, user: application, to: to(l.elsewhere4, 80)},
		{from: l.pod, user: application, to: to(l.outside6, 80)},
		{from: l.pod, user: application, group: 2000, to: to(l.outside4, 80)},
		{from: l.pod, user: 1001, to: to(l.outside4, 80)},
		{from: l.pod, user: proxy, to: to(l.outside4, 80)},
		{from: l.pod, user: proxy, to: to(pod4, 8080)},
		{from: l.pod, user: proxy, to: to(pod6, 8080)},
		{from: l.pod, user: proxy, to: to(pod4, 15008)},
		{from: l.pod, user: proxy, local: "127.0.0.6:0", to: to(pod4, 8080)},
		{from: l.pod, user: application, to: to(pod4, 8080)},
		{from: l.pod, user: application, to: "127.0.0.1:8080"},
		{from: l.pod, user: application, to: "127.0.0.3:8080"},
		{from: l.peer, to: to(pod6, 8080)},
		{from: l.pod, user: application, to: to(l.resolver, portDNS)},
		{from: l.pod, user: application, to: to(l.other, portDNS)},
		l.query(application, l.resolver), l.query(application, l.other), l.query(proxy, l.resolver), l.query(application, l.peer.IP6),
	} {
		all = append(all, fmt.Sprintf("%s %d/%d %s to %s: %s", p.network, p.user, p.group, p.from.Name, p.to, l.reaches(t, p)))
	}
	return all
}

// TestVariantsAgree sets the same rules with nftables and with each variant of iptables, and checks
// that connections end at the same place.
func TestVariantsAgree(t *testing.T) {
	t.Parallel()
	available := variants(t)
	l := newLab(t)
	before := l.verdicts(t)
	n := 100
	if testing.Short() {
		n = 10
	}
	for _, c := range combinations(n) {
		l.apply(t, c[0], c[1])
		want := l.verdicts(t)
		for _, variant := range available {
			l.apply(t, c[0]+" --force-iptables-binary="+variant, c[1])
			if diff := cmp.Diff(want, l.verdicts(t)); diff != "" {
				t.Errorf("%s %s with iptables-%s:\n%s", c[0], c[1], variant, diff)
			}
		}
		if t.Failed() {
			return
		}
	}
	for _, variant := range available {
		l.apply(t, usual+"-m TPROXY --redirect-dns --force-iptables-binary="+variant)
		l.apply(t, "--cleanup-only")
		if diff := cmp.Diff(before, l.verdicts(t)); diff != "" {
			t.Errorf("after the removal of rules of iptables-%s:\n%s", variant, diff)
		}
		if left := l.saved(t, variant); strings.Contains(left, "-A ") || strings.Contains(left, "ISTIO") {
			t.Errorf("iptables-%s has still\n%s", variant, left)
		}
	}
}

// saved returns the rules that a variant of iptables has for both address families.
func (l *lab) saved(t *testing.T, variant string) (all string) {
	t.Helper()
	l.do(t, l.pod, func() error {
		for _, program := range []string{"iptables", "ip6tables"} {
			out, err := exec.Command(program + "-" + variant + "-save").Output()
			if err != nil {
				return err
			}
			all += string(out)
		}
		return nil
	})
	return all
}

// TestLeftovers checks that rules of istio-iptables are found and removed, and that rules of others
// remain.
func TestLeftovers(t *testing.T) {
	t.Parallel()
	available := variants(t)
	l := newLab(t)
	before := l.verdicts(t)
	const others = "*nat\n:OTHERS - [0:0]\n-A OUTPUT -p tcp --dport 1 -j OTHERS\n-A OTHERS -p tcp -j RETURN\nCOMMIT\n"
	for _, variant := range available {
		for _, how := range []string{usual + "--reconcile", "--cleanup-only"} {
			for _, f := range l.settings(t, usual+"-m TPROXY --redirect-dns").Rules() {
				l.do(t, l.pod, func() error {
					program := f.program() + "-" + variant + "-restore"
					if _, err := output(t.Context(), others, program); err != nil {
						return err
					}
					_, err := output(t.Context(), f.restoreInput(), program, "--noflush")
					return err
				})
			}
			var log bytes.Buffer
			s := l.settings(t, usual)
			l.do(t, l.pod, func() error { return s.run(t.Context(), slog.New(slog.NewTextHandler(&log, nil)), &log) })
			if !strings.Contains(log.String(), "other rules also redirect connections") || !strings.Contains(log.String(), "name=iptables-"+variant) {
				t.Errorf("rules of iptables-%s are not reported: %s", variant, &log)
			}
			l.apply(t, how)
			if left := l.saved(t, variant); strings.Contains(left, "ISTIO") || strings.Count(left, "-A ") != 4 || strings.Count(left, "-j OTHERS") != 2 {
				t.Errorf("after %s, iptables-%s has\n%s", how, variant, left)
			}
		}
	}
	if diff := cmp.Diff(before, l.verdicts(t)); diff != "" {
		t.Errorf("after the removal:\n%s", diff)
	}
}

// TestNativeLeftovers checks that nftables tables of istio-iptables are removed.
func TestNativeLeftovers(t *testing.T) {
	t.Parallel()
	l := newLab(t)
	tables := func() (names []string) {
		l.do(t, l.pod, func() error {
			c, err := nftables.New()
			if err != nil {
				return err
			}
			all, err := c.ListTables()
			for _, table := range all {
				names = append(names, table.Name)
			}
			return err
		})
		return names
	}
	for how, want := range map[string][]string{"-b *": {"istio-proxy-nat", "others", ownTable}, "-b * --reconcile": {"others", ownTable}, "--cleanup-only": {"others"}} {
		l.do(t, l.pod, func() error {
			c, err := nftables.New()
			if err != nil {
				return err
			}
			c.FlushRuleset()
			c.AddTable(&nftables.Table{Name: "istio-proxy-nat", Family: nftables.TableFamilyINet})
			c.AddTable(&nftables.Table{Name: "others", Family: nftables.TableFamilyIPv4})
			return c.Flush()
		})
		l.apply(t, how)
		got := tables()
		if diff := cmp.Diff(want, got, cmpopts.SortSlices(strings.Compare)); diff != "" {
			t.Errorf("tables after %q:\n%s", how, diff)
		}
	}
}

// TestMissingIPTables checks that the error names the missing program.
func TestMissingIPTables(t *testing.T) {
	t.Setenv("PATH", t.TempDir())
	err := restoreIPTables(t.Context(), iptablesLegacy, nil)
	if want := "ip6tables-legacy-save is not in PATH: install iptables, or use nftables"; err == nil || err.Error() != want {
		t.Errorf("error %v, want %s", err, want)
	}
}
