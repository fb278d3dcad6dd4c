// SPDX-License-Identifier: Apache-2.0
// Copyright The Outrigger Authors

package inspect

import (
	"cmp"
	"errors"
	"fmt"
	"io"
	"slices"
	"strings"
	"time"
	"unicode"

	"github.com/spf13/cobra"

	"github.com/outrigger-mesh/outrigger/controlplane/analyze"
	"github.com/outrigger-mesh/outrigger/controlplane/report"
	"github.com/outrigger-mesh/outrigger/mesh"
)

func newStatusCommand(cfg Config) *cobra.Command {
	f := statusFlags{reachFlags: reachFlags{askFlags: askFlags{cfg: cfg}}}
	cmd := &cobra.Command{
		Use:     "status [PROXY]",
		Aliases: []string{"ps", "proxy-status"},
		Short:   "Print which proxies have their current configuration",
		Long: `Print a table of all proxies: the state of each type of configuration, and since
when.

  SYNCED     the proxy accepted the last response
  STALE      the proxy has not answered the last response yet
  REJECTED   the proxy rejected the last response; a last good version stays in force
  HELD BACK  another proxy rejected it: it was not sent to this one
  NOT SENT   no resource of this type exists, or the proxy did not ask for it
  GONE       the connection of the proxy ended within the last hour, and its
             workload exists as far as is known; its Envoy keeps what it had

With PROXY, as name.namespace or the beginning of it, print the details of one proxy,
and the expiry of its certificate, for which its agent is asked.
` + reachLong + `

With --agent, print how long a workload keeps working while control plane,
certificate authority and token issuers stay away, when its other certificates,
roots and revocation lists end, such as those of gateways, and who renews them. The
agent answers, so this also works while no control plane does. ` + reachCure + `.

The certificates of control planes and of their authority, and the keys of token issuers,
are named when they end soon, with who renews them; with -o wide and json all of them.

Without PROXY, also print the errors and warnings of outrigger analyze, and what is
wrong with a control plane: a rejected mesh config or deny list, a damaged history, a
cluster that cannot be read.

The exit code is 0 if every proxy shown is up to date; 1 if one is not, it or a control
plane has an expired certificate, if an error is printed, or a control plane does not
answer; 2 for a wrong command line.

A proxy has a row for each of its states, with the types in it. With -o wide it has
one row, with a column for each type, its cluster, control plane and versions.

With --watch on a terminal, print everything again every --interval. Elsewhere print
everything once, then the rows of proxies that change, with the state GONE for one
that left; with -o json or yaml, a document for each change. A control plane that
stops answering, or answers again, is named. Ctrl-C ends, with the exit code of the
last state.

Tables fit the terminal: names are shortened, then columns are left out, the last
first, and named below the table.

A control plane knows the proxies that are connected to it. With several replicas
name each with --control, or all of them separated by commas. Where no control plane
is named and none runs on this machine, those of the kubeconfig's current cluster are
asked, in the namespace of --istioNamespace and through kubectl port-forward: they
answer without a token only on their own machine.`,
		Example: "  outrigger status\n  outrigger status --watch\n  outrigger status catalog-1.shop\n  outrigger status -o wide\n  outrigger status -o json\n" +
			"  outrigger status --control 10.0.0.1:15014 --control 10.0.0.2:15014\n  outrigger status --agent 127.0.0.1:15020",
		Args: func(_ *cobra.Command, args []string) error {
			if len(args) > 1 {
				return cfg.Exit(exitUsage, fmt.Errorf("want at most one proxy, not %d", len(args)))
			}
			return nil
		},
		RunE: func(cmd *cobra.Command, args []string) error {
			return f.run(cmd, args)
		},
	}
	f.add(cmd)
	f.addAgents(cmd)
	f.addWatch(cmd)
	f.complete(cmd, completeProxy(&f.askFlags))
	return cmd
}

// statusFlags are the flags of status.
type statusFlags struct {
	reachFlags
	watchFlags
}

func (f *statusFlags) run(cmd *cobra.Command, args []string) error {
	if err := f.checkInterval(); err != nil {
		return f.cfg.Exit(exitUsage, err)
	}
	switch {
	case len(f.agents) > 0 && len(args) > 0:
		return f.cfg.Exit(exitUsage, errors.New("--agent names the proxies: leave out PROXY"))
	case f.watch:
		return f.watchStatus(cmd, strings.Join(args, ""))
	case len(f.agents) > 0:
		return f.outage(cmd)
	}
	return f.status(cmd, args)
}

// asked is a control plane in the JSON and YAML output.
type asked struct {
	Address string `json:"address"`
	Error   string `json:"error,omitempty"`
	// Agents are the answers of the agents of a named proxy.
	Agents []outage `json:"agents,omitempty"`
	// Findings are the problems that are known, in the first answer only; Unknown says why not all are.
	Findings []analyze.Finding `json:"findings,omitempty"`
	Unknown  string            `json:"findings_error,omitempty"`
	*report.Replica
}

// askedOf returns the answers of control planes with those of the agents of their proxies, and with
// what is wrong.
func askedOf(answers []answer[report.Replica], agents []outage, wrong known) []asked {
	list := []asked{}
	for _, a := range answers {
		one := asked{Address: a.address, Replica: &a.value}
		if a.err != nil {
			one = asked{Address: a.address, Error: a.err.Error()}
		} else if len(a.value.Proxies) > 0 {
			one.Agents = agents
		}
		list = append(list, one)
	}
	if len(list) > 0 {
		if list[0].Findings = wrong.list; wrong.err != nil {
			list[0].Unknown = wrong.err.Error()
		}
	}
	return list
}

func (f *askFlags) status(cmd *cobra.Command, args []string) error {
	addresses, err := f.addresses()
	if err != nil {
		return err
	}
	answers := withGone(ask[report.Replica](cmd.Context(), addresses, question{path: "proxies"}, f.timeout))
	v := view{out: cmd.OutOrStdout(), now: time.Now(), flags: f}
	if len(args) == 1 {
		if err := pick(answers, args[0]); err != nil {
			f.complain(cmd, answers)
			return f.cfg.Exit(exitFailed, err)
		}
		v.agents = agentsOf(cmd.Context(), answers, min(f.timeout, agentTimeout))
	} else {
		v.wrong = (&problems{}).find(cmd.Context(), f, answers)
	}
	switch {
	case !f.forReaders():
		err = f.write(cmd.OutOrStdout(), askedOf(answers, v.agents, v.wrong))
	case len(args) == 1:
		err = v.proxies(answers)
	default:
		err = v.table(answers)
	}
	if err != nil {
		return err
	}
	if f.complain(cmd, answers) > 0 || !allWell(answers) || v.wrong.serious() || slices.ContainsFunc(v.agents, outage.expired) {
		return f.cfg.Exit(exitFailed, nil)
	}
	return nil
}

// withGone adds the proxies that are gone to the others, unless another control plane has them.
func withGone(answers []answer[report.Replica]) []answer[report.Replica] {
	since := map[string]time.Time{} // the newest end of a connection of each; the zero time if there is one
	for _, a := range answers {
		for _, p := range a.value.Gone {
			if at := p.Types[0].Since; at.After(since[p.Name]) {
				since[p.Name] = at
			}
		}
	}
	for _, a := range answers {
		for _, p := range a.value.Proxies {
			delete(since, p.Name)
		}
	}
	for i := range answers {
		r := &answers[i].value
		for _, p := range r.Gone {
			if at, ok := since[p.Name]; ok && at.Equal(p.Types[0].Since) {
				r.Proxies = append(r.Proxies, p)
			}
		}
		r.Gone = nil
	}
	return answers
}

// allWell reports whether every proxy is up to date, and no credential of a control plane has ended.
func allWell(answers []answer[report.Replica]) bool {
	for _, a := range answers {
		if slices.ContainsFunc(a.value.Credentials, func(c report.Credential) bool { return !c.Until.After(time.Now()) }) {
			return false
		}
		for _, p := range a.value.Proxies {
			if w := worst(p); w != report.Synced && w != report.NotSent || starting(p) {
				return false
			}
		}
	}
	return true
}

// complain prints the control planes that did not respond.
func (f *askFlags) complain(cmd *cobra.Command, answers []answer[report.Replica]) int {
	return complain(cmd.ErrOrStderr(), answers)
}

// useControl is the cure for a mesh of another user.
const useControl = "use --control ADDRESS"

func complain[T any](out io.Writer, answers []answer[T]) (n int) {
	silent := 0
	for _, a := range answers {
		if a.err != nil {
			n++
			if !errors.As(a.err, new(*answerError)) {
				silent++
			}
			_, _ = fmt.Fprintf(out, "error: control plane %s: %v\n", a.address, a.err) // the terminal may be closed
		}
	}
	if silent > 0 && silent == len(answers) {
		_, _ = fmt.Fprintf(out, "No control plane was reached. Is it running? Name others with --control%s\n", mesh.OtherControls(useControl)) // see above
	}
	return n
}

// pick reduces the answers to the proxy with the given name or name prefix.
func pick(answers []answer[report.Replica], name string) error {
	names, err := pickAll(answers, name)
	if err == nil && len(names) > 1 {
		err = fmt.Errorf("%q is the beginning of several proxies: %s", name, few(names))
	}
	return err
}

// pickAll reduces the answers to the proxy with the given name, or to those with the name prefix, and
// returns their names.
func pickAll(answers []answer[report.Replica], name string) ([]string, error) {
	var exact, similar, all []string
	for _, a := range answers {
		for _, p := range a.value.Proxies {
			all = append(all, p.Name)
			switch {
			case p.Name == name:
				exact = append(exact, p.Name)
			case strings.HasPrefix(p.Name, name):
				similar = append(similar, p.Name)
			}
		}
	}
	if len(exact) == 0 {
		exact = similar
	}
	slices.Sort(exact)
	exact = slices.Compact(exact)
	slices.Sort(all)
	all = slices.Compact(all)
	for _, a := range answers {
		for _, p := range a.value.Gone {
			if len(exact) == 0 && strings.HasPrefix(p.Name, name) {
				return nil, fmt.Errorf("%s is not connected: its connection ended %s ago; see outrigger status %[1]s", oneLine(p.Name), age(p.Types[0].Since, time.Now()))
			}
		}
	}
	switch {
	case len(exact) == 0 && len(all) == 0:
		return nil, fmt.Errorf("no proxy is connected, so there is no %q", name)
	case len(exact) == 0:
		return nil, fmt.Errorf("no proxy %q is connected; there are: %s", name, few(all))
	}
	for i := range answers {
		answers[i].value.Proxies = slices.DeleteFunc(answers[i].value.Proxies, func(p report.Proxy) bool { return !slices.Contains(exact, p.Name) })
	}
	return exact, nil
}

// few formats a list for a message and shortens it if necessary.
func few(list []string) string { return fewOf(list, len(list)) }

// fewOf is few for a list that has only the first ones of all.
func fewOf(list []string, all int) string {
	shown := list[:min(len(list), 10)]
	if left := max(all, len(list)) - len(shown); left > 0 {
		return fmt.Sprintf("%s and %d more", oneLine(strings.Join(shown, ", ")), left)
	}
	return oneLine(strings.Join(shown, ", "))
}

// view prints answers as text.
type view struct {
	out    io.Writer
	now    time.Time
	flags  *askFlags
	agents []outage // of the proxy whose details are printed; may be nil
	wrong  known    // printed below the table of proxies
	indent string   // before the lines of tables
}

// say prints a sentence. Texts from proxies and control planes are kept on one line.
func (v view) say(format string, args ...any) {
	for i, a := range args {
		if text, ok := a.(string); ok {
			args[i] = plain(text)
		}
	}
	_, _ = fmt.Fprintf(v.out, format, args...) // the terminal may be closed
}

// summary prints the state of the proxies in one sentence.
func (v view) summary(proxies []report.Proxy, answers []answer[report.Replica]) {
	states := map[report.State]int{}
	silent := slices.ContainsFunc(answers, func(a answer[report.Replica]) bool { return a.err != nil || a.stale != nil })
	begun := 0
	for _, p := range proxies {
		states[worst(p)]++
		if starting(p) {
			begun++
		}
	}
	var words []string
	for _, s := range []struct {
		state report.State
		text  string
	}{
		{report.Gone, "lost the connection"},
		{report.Rejected, "rejected something"},
		{report.HeldBack, "had something held back that another one rejected"},
		{report.Stale, "not answered yet"},
	} {
		if n := states[s.state]; n > 0 {
			words = append(words, fmt.Sprintf("%d %s %s", n, hasHave(n), s.text))
		}
	}
	if begun > 0 {
		words = append(words, fmt.Sprintf("%d %s not requested listeners yet", begun, hasHave(begun)))
	}
	switch {
	case len(proxies) == 0 && silent:
		v.say("Whether proxies are connected is not known.\n")
	case len(proxies) == 0:
		v.say("No proxy is connected.\n")
	case len(words) == 0 && silent:
		v.say("%s: all have what they were sent, as far as control planes responded.\n", count(len(proxies), "proxy", "proxies"))
	case len(words) == 0:
		v.say("%s: all have what they were sent.\n", count(len(proxies), "proxy", "proxies"))
	default:
		v.say("%s: %s.\n", count(len(proxies), "proxy", "proxies"), strings.Join(words, ", "))
	}
}

func hasHave(n int) string {
	if n == 1 {
		return "has"
	}
	return "have"
}

// starting reports whether a proxy has no listeners yet. Envoy requests them once its clusters are
// complete.
func starting(p report.Proxy) bool {
	return worst(p) == report.Synced && stateOf(p, "cds") != report.NotSent && stateOf(p, "lds") == report.NotSent
}

// stateOf returns the state of a type on a proxy.
func stateOf(p report.Proxy, name string) report.State {
	for _, t := range p.Types {
		if t.Name == name {
			return t.State
		}
	}
	return report.NotSent
}

// asked prints which control planes were queried.
func (v view) asked(answers []answer[report.Replica]) {
	for _, a := range answers {
		if a.err != nil {
			v.say("Control plane at %s did not respond: its proxies are missing here.\n", a.address)
			continue
		}
		if a.stale != nil {
			v.say("Control plane at %s has not answered for %s (%s): its proxies are shown as they were then.\n", a.address, age(a.since, v.now), oneLine(a.stale.Error()))
			continue
		}
		r := a.value
		pushed := "nothing pushed yet"
		if !r.Pushed.IsZero() {
			pushed = "last push " + age(r.Pushed, v.now) + " ago"
		}
		v.say("Control plane %s at %s, version %s: %s, %s.\n", cmp.Or(r.Name, "without a name"), a.address, cmp.Or(r.Version, "unknown"),
			count(len(r.Proxies), "proxy", "proxies"), pushed)
		if isolated(a.address) {
			v.say("Each workload has its own network namespace on this machine.\n")
		}
		v.denyList(r)
		v.ends(r)
	}
}

// oneLine sanitizes text from others: a single line without terminal control characters.
func oneLine(s string) string { return plain(strings.TrimSpace(s)) }

func plain(s string) string {
	return strings.Map(func(r rune) rune {
		if unicode.IsControl(r) || unicode.Is(unicode.Bidi_Control, r) {
			return ' '
		}
		return r
	}, s)
}
