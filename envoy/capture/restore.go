// SPDX-License-Identifier: Apache-2.0
// Copyright The Outrigger Authors

package capture

import (
	"fmt"
	"io"
	"net/netip"
	"slices"
	"strconv"
	"strings"
)

// restoreInput returns the rules of a family as input of iptables-restore --noflush.
func (f Family) restoreInput() string {
	var out strings.Builder
	for _, table := range []string{tableRaw, tableMangle, tableNAT} {
		rules := f.of(table)
		if len(rules) == 0 {
			continue
		}
		fmt.Fprintf(&out, "* %s\n", table)
		for _, chain := range ownChains(rules) {
			fmt.Fprintf(&out, "-N %s\n", chain)
		}
		for _, r := range rules {
			fmt.Fprintln(&out, strings.Join(r.args(), " "))
		}
		fmt.Fprintln(&out, "COMMIT")
	}
	return out.String()
}

// commands returns the rules of a family as command lines of iptables or ip6tables.
func (f Family) commands() (lines []string) {
	for _, table := range []string{tableRaw, tableMangle, tableNAT} {
		rules := f.of(table)
		for _, chain := range ownChains(rules) {
			lines = append(lines, fmt.Sprintf("%s -t %s -N %s", f.program(), table, chain))
		}
		for _, r := range rules {
			lines = append(lines, fmt.Sprintf("%s -t %s %s", f.program(), table, strings.Join(r.args(), " ")))
		}
	}
	return lines
}

func (f Family) program() string {
	if f.Six {
		return "ip6tables"
	}
	return "iptables"
}

// printRules writes the rules of all families for a reader or a script.
func printRules(out io.Writer, families []Family, restore bool) error {
	for _, f := range families {
		text := strings.Join(f.commands(), "\n") + "\n"
		if restore {
			text = fmt.Sprintf("# %s-restore --noflush\n%s", f.program(), f.restoreInput())
		}
		if _, err := io.WriteString(out, text); err != nil {
			return err
		}
	}
	return nil
}

// of returns the rules of a table.
func (f Family) of(table string) (rules []Rule) {
	for _, r := range f.Rules {
		if r.table == table {
			rules = append(rules, r)
		}
	}
	return rules
}

// ownChains returns the chains of rules that do not belong to the kernel.
func ownChains(rules []Rule) (chains []string) {
	for _, r := range rules {
		for _, chain := range []string{r.chain, r.action.chain} {
			if chain != "" && !isBuiltin(chain) && !slices.Contains(chains, chain) {
				chains = append(chains, chain)
			}
		}
	}
	return chains
}

// args returns a rule as the arguments of iptables.
func (r Rule) args() []string {
	return append(append([]string{"-A", r.chain}, r.match.args()...), r.action.args()...)
}

func (m match) args() (args []string) {
	add := func(not bool, option string, values ...string) {
		if not {
			args = append(args, "!")
		}
		args = append(append(args, option), values...)
	}
	if m.proto != "" {
		add(false, "-p", m.proto)
	}
	if m.in != "" {
		add(false, "-i", m.in)
	}
	if m.out != "" {
		add(false, "-o", m.out)
	}
	if m.src != (netip.Prefix{}) {
		add(false, "-s", m.src.String())
	}
	if m.dst != (netip.Prefix{}) {
		add(m.notDst, "-d", m.dst.String())
	}
	if m.sport != 0 {
		add(false, "--sport", decimal(m.sport))
	}
	if m.dport != 0 {
		add(false, "--dport", decimal(m.dport))
	}
	switch len(m.notDports) {
	case 0:
	case 1:
		add(true, "--dport", decimal(m.notDports[0]))
	default:
		var ports []string
		for _, port := range m.notDports {
			ports = append(ports, decimal(port))
		}
		add(false, "-m", "multiport")
		add(true, "--dports", strings.Join(ports, ","))
	}
	for _, id := range m.ids {
		add(false, "-m", "owner")
		add(m.notOwner, "--"+m.owner+"-owner", decimal(id))
	}
	if m.state != "" {
		add(false, "-m", "conntrack", "--ctstate", m.state)
	}
	if m.mark != 0 {
		add(false, "-m", "mark")
		add(m.notMark, "--mark", decimal(m.mark))
	}
	if m.connMark != 0 {
		add(false, "-m", "connmark", "--mark", decimal(m.connMark))
	}
	return args
}

func (a action) args() []string {
	switch a.kind {
	case doAccept:
		return []string{"-j", "ACCEPT"}
	case doDrop:
		return []string{"-j", "DROP"}
	case doJump:
		return []string{"-j", a.chain}
	case doRedirect:
		return []string{"-j", "REDIRECT", "--to-ports", decimal(a.port)}
	case doTProxy:
		return []string{"-j", "TPROXY", "--tproxy-mark", decimal(a.value) + "/0xffffffff", "--on-port", decimal(a.port)}
	case doMark:
		return []string{"-j", "MARK", "--set-mark", decimal(a.value)}
	case doSaveMark:
		return []string{"-j", "CONNMARK", "--save-mark"}
	case doRestoreMark:
		return []string{"-j", "CONNMARK", "--restore-mark"}
	case doZone:
		return []string{"-j", "CT", "--zone", decimal(a.value)}
	case doLog:
		return []string{"-j", "NFLOG", "--nflog-prefix", a.text, "--nflog-group", decimal(uint32(logGroup)), "--nflog-size", decimal(uint32(logSize))}
	default:
		return []string{"-j", "RETURN"}
	}
}

// The group that NFLOG sends to, and how much of a packet it sends.
const (
	logGroup = 1337
	logSize  = 20
)

func decimal[T uint16 | uint32](n T) string { return strconv.FormatUint(uint64(n), 10) }
