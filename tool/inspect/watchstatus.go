// SPDX-License-Identifier: Apache-2.0
// Copyright The Outrigger Authors

package inspect

import (
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"io"
	"maps"
	"slices"
	"strings"
	"time"

	"github.com/spf13/cobra"

	"github.com/outrigger-mesh/outrigger/controlplane/report"
)

// watched are the states of a mesh that a command watches.
type watched struct {
	*watcher
	cmd  *cobra.Command
	name string // of the proxy; empty for all
	// known are the last answers of control planes, for those that do not answer.
	known map[string]report.Replica
	rows  map[string]string // of each proxy, as printed, without ages
	found problems
}

// watch prints the status of proxies, and then what changes.
func (f *statusFlags) watchStatus(cmd *cobra.Command, name string) error {
	w := &watched{watcher: newWatcher(cmd, &f.askFlags, f.watchFlags, false), cmd: cmd, name: name, known: map[string]report.Replica{}}
	if len(f.agents) > 0 {
		return w.run(cmd.Context(), func(ctx context.Context) (frame, error) { return f.outageFrame(ctx, cmd, w.watcher) })
	}
	addresses, err := f.addresses()
	if err != nil {
		return err
	}
	return w.run(cmd.Context(), func(ctx context.Context) (frame, error) {
		return w.look(ctx, withGone(ask[report.Replica](ctx, addresses, question{path: "proxies", memory: f.memory}, f.timeout)))
	})
}

// outageFrame returns the frame of the answers of agents.
func (f *statusFlags) outageFrame(ctx context.Context, cmd *cobra.Command, w *watcher) (frame, error) {
	proxies, _, err := f.find(ctx, cmd.ErrOrStderr(), "")
	if err != nil {
		return frame{}, err
	}
	list := outagesOf(ctx, proxies, f.timeout)
	return frame{
		same: keyOf(list), failed: slices.ContainsFunc(list, func(o outage) bool { return o.Error != "" || o.expired() }),
		page: func(v view) error {
			if !w.flags.forReaders() {
				return w.flags.write(v.out, list)
			}
			complainAbout(v.out, list)
			return v.outages(list)
		},
	}, nil
}

// look returns the frame of answers. At first, at least one control plane must answer, and a named
// proxy be connected.
func (w *watched) look(ctx context.Context, answers []answer[report.Replica]) (frame, error) {
	if !w.begun && !slices.ContainsFunc(answers, func(a answer[report.Replica]) bool { return a.err == nil }) {
		w.flags.complain(w.cmd, answers)
		return frame{}, w.flags.cfg.Exit(exitFailed, nil)
	}
	if ctx.Err() != nil {
		return frame{}, nil
	}
	raw, next := copied(answers), frame{}
	for i, a := range answers {
		what := "control plane " + a.address
		w.note(what, a.err, time.Now())
		next.failed = next.failed || a.err != nil
		if known, ok := w.known[a.address]; ok && a.err != nil {
			next.troubles = append(next.troubles, what+" does not answer: "+a.err.Error())
			answers[i] = answer[report.Replica]{address: a.address, value: known, stale: a.err, since: w.lost[what]}
		} else if a.err == nil {
			w.known[a.address] = a.value
		}
	}
	var agents []outage
	if w.name != "" {
		answers = copied(answers)
		if err := pick(answers, w.name); err != nil {
			if !w.begun {
				return next, w.flags.cfg.Exit(exitFailed, err)
			}
			return frame{failed: true, same: err.Error(), page: func(v view) error {
				v.say("%s.\n", err.Error())
				return nil
			}}, nil
		}
		if pick(raw, w.name) != nil { // the control plane of the proxy does not answer
			for i := range raw {
				raw[i].value.Proxies = nil
			}
		}
		agents = agentsOf(ctx, answers, min(w.flags.timeout, agentTimeout))
	}
	var wrong known
	if w.name == "" {
		wrong = w.found.find(ctx, w.flags, answers)
	}
	next.failed = next.failed || wrong.serious() || !allWell(answers) || slices.ContainsFunc(agents, outage.expired)
	if !w.flags.forReaders() {
		return w.document(next, askedOf(raw, agents, wrong), keyOf(agents))
	}
	if w.name != "" {
		next.page = func(v view) error {
			v.agents = agents
			return v.proxies(answers)
		}
		var same bytes.Buffer
		err := next.page(view{out: &same, flags: w.flags})
		next.same = same.String() + keyOf(agents)
		return next, err
	}
	next.page = func(v view) error {
		v.wrong = wrong
		return v.table(answers)
	}
	w.addChanges(&next, answers)
	return next, nil
}

// document completes a frame that is a document. It ignores the clocks of agents.
func (w *watched) document(next frame, doc []asked, agents string) (frame, error) {
	next.page = func(v view) error { return w.flags.write(v.out, doc) }
	plain := slices.Clone(doc)
	for i := range plain {
		plain[i].Agents = nil
	}
	raw, err := json.Marshal(plain)
	next.same = string(raw) + agents
	return next, err
}

// copied returns answers whose lists of proxies can be changed.
func copied(answers []answer[report.Replica]) []answer[report.Replica] {
	out := slices.Clone(answers)
	for i := range out {
		out[i].value.Proxies = slices.Clone(out[i].value.Proxies)
	}
	return out
}

// addChanges adds what changes in the table: the rows of proxies that have others than before.
func (w *watched) addChanges(next *frame, answers []answer[report.Replica]) {
	proxies := proxiesIn(answers)
	table := view{flags: w.flags}.tableOf(proxies) // without a clock there are no ages
	before, now := w.rows, map[string]string{}
	for _, p := range proxies {
		for _, r := range table.rows(p) {
			now[p.Name] += strings.Join(r, "\t") + "\n"
		}
		next.same += now[p.Name]
	}
	w.rows = now
	changed := slices.DeleteFunc(slices.Clone(proxies), func(p report.Proxy) bool { return before[p.Name] == now[p.Name] })
	left := slices.DeleteFunc(slices.Sorted(maps.Keys(before)), func(name string) bool { return now[name] != "" })
	next.changes = func(v view) error {
		table := v.tableOf(proxies)
		rows := [][]string{table.header}
		for _, p := range proxies { // all, so that the columns stay where they are
			rows = append(rows, table.rows(p)...)
		}
		from := len(rows)
		for _, p := range changed {
			rows = append(rows, table.rows(p)...)
		}
		for _, name := range left {
			row := slices.Repeat([]string{"-"}, len(table.header))
			row[0], row[table.state] = name, string(report.Gone)
			rows = append(rows, row)
		}
		lines, _, _ := v.lines(rows, table.header[0])
		_, err := io.WriteString(v.out, strings.Join(lines[from:], ""))
		v.rejected(changed)
		return err
	}
}

// keyOf returns a text that differs if the answers of agents differ in more than their clocks.
func keyOf(agents []outage) string {
	var b strings.Builder
	for _, o := range agents {
		fmt.Fprintln(&b, o.Agent, o.Error, o.Connected, o.Since)
		for _, p := range slices.Concat(o.Parts, o.Credentials) {
			fmt.Fprintln(&b, p, !p.Until.After(o.Now))
		}
	}
	return b.String()
}
