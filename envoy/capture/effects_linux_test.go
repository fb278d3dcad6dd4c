// SPDX-License-Identifier: Apache-2.0
// Copyright The Outrigger Authors

package capture

import (
	"flag"
	"io"
	"log/slog"
	"net/netip"
	"os"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	"github.com/vishvananda/netlink"
)

var update = flag.Bool("update", false, "write testdata/effects.txt")

// effectsFile consists of blocks separated by empty lines. A block contains the name of a case, its
// flags, its environment, the resolvers of the system, and the connections that end elsewhere than
// without rules.
const effectsFile = "testdata/effects.txt"

// effectCase is one block of the file.
type effectCase struct {
	name, flags, environ, resolvers string
	effects                         []string
}

func (c effectCase) String() string {
	lines := []string{"# " + c.name}
	for _, field := range [][2]string{{"flags: ", c.flags}, {"environment: ", c.environ}, {"resolvers: ", c.resolvers}} {
		if field[1] != "" {
			lines = append(lines, field[0]+field[1])
		}
	}
	return strings.Join(append(lines, c.effects...), "\n") + "\n"
}

func readEffects(t *testing.T) (cases []effectCase) {
	t.Helper()
	text, err := os.ReadFile(effectsFile)
	if err != nil {
		t.Fatal(err)
	}
	for block := range strings.SplitSeq(string(text), "\n\n") {
		var c effectCase
		for line := range strings.Lines(block) {
			line = strings.TrimSuffix(line, "\n")
			key, value, _ := strings.Cut(line, " ")
			switch key {
			case "#":
				c.name = value
			case "flags:":
				c.flags = value
			case "environment:":
				c.environ = value
			case "resolvers:":
				c.resolvers = value
			default:
				c.effects = append(c.effects, line)
			}
		}
		cases = append(cases, c)
	}
	return cases
}

// read returns the settings of a case.
func (l *wideLab) read(t *testing.T, c effectCase) *Settings {
	t.Helper()
	system := testSystem()
	system.resolvConf = func() (conf []byte, _ error) {
		for _, resolver := range strings.Fields(c.resolvers) {
			conf = append(conf, "nameserver "+resolver+"\n"...)
		}
		return conf, nil
	}
	s, warnings, err := readOn(t, system, (*Flags).Add, c.flags, strings.Fields(c.environ)...)
	if err != nil || len(warnings) > 0 {
		t.Fatal(c.name, warnings, err)
	}
	return s
}

// agentDNS serves the agent's DNS as the user in the settings, until stop is called.
func (l *wideLab) agentDNS(t *testing.T, s *Settings) (stop func()) {
	t.Helper()
	var stops []func()
	for _, a := range []string{"local", "local6"} {
		stops = append(stops, l.serveUDPAs(t, l.pod, netip.AddrPortFrom(l.address(a), portAgentDNS), "dns", int(s.UIDs[0])))
	}
	return func() {
		for _, f := range stops {
			f()
		}
	}
}

// TestEffects applies the settings of each case and checks where connections end. The cases cover
// the settings in the tests of istio-iptables 1.18 and 1.30. The results equal those of
// istio-iptables, except for the differences in docs/compatibility.md.
func TestEffects(t *testing.T) {
	t.Parallel()
	l := newWideLab(t)
	questions := l.questions(t)
	usual := map[string]string{}
	stop := l.agentDNS(t, l.read(t, effectCase{}))
	for _, q := range questions {
		usual[q.name] = l.answer(t, q)
	}
	stop()
	cases := readEffects(t)
	if len(cases) < 41 {
		t.Errorf("%s has only %d cases", effectsFile, len(cases))
	}
	observe := func(c effectCase) []string {
		s := l.read(t, c)
		defer l.agentDNS(t, s)()
		l.do(t, l.pod, func() error {
			if err := s.run(t.Context(), slog.New(slog.DiscardHandler), io.Discard); err != nil {
				return err
			}
			return netlink.ConntrackTableFlush(netlink.ConntrackTable)
		})
		return l.effects(t, questions, usual)
	}
	available := installedVariants(t)
	var got []string
	for i, c := range cases {
		want := c.effects
		c.effects = observe(c)
		got = append(got, c.String())
		if diff := cmp.Diff(want, c.effects); diff != "" && !*update {
			t.Errorf("%s:\n%s", c.name, diff)
		}
		if len(available) == 0 {
			continue
		}
		// Testing every variant in each case would take too long.
		variant := available[i%len(available)]
		other := c
		other.flags += " --force-iptables-binary=" + variant
		if diff := cmp.Diff(c.effects, observe(other)); diff != "" {
			t.Errorf("%s: iptables-%s differs from nftables:\n%s", c.name, variant, diff)
		}
	}
	if *update {
		if err := os.WriteFile(effectsFile, []byte(strings.Join(got, "\n")), 0o644); err != nil {
			t.Fatal(err)
		}
	}
}
