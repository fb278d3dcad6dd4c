// SPDX-License-Identifier: Apache-2.0
// Copyright The Outrigger Authors

package inspect

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"maps"
	"slices"
	"strings"
	"time"
	"unicode/utf8"

	"github.com/spf13/cobra"

	"github.com/outrigger-mesh/outrigger/internal/columns"
	"github.com/outrigger-mesh/outrigger/internal/output"
	"github.com/outrigger-mesh/outrigger/mesh"
)

// Bounds of what top asks.
const (
	defaultInterval = 5 * time.Second // Envoy updates histograms so often
	minInterval     = time.Second
	maxInterval     = 10 * time.Minute
	maxMeasured     = 1000 // proxies
)

// topFlags are the flags of top.
type topFlags struct {
	reachFlags
	namespace, order string
	interval         time.Duration
	once             bool
}

func newTopCommand(cfg Config) *cobra.Command {
	f := topFlags{reachFlags: reachFlags{askFlags: askFlags{cfg: cfg}}}
	cmd := &cobra.Command{
		Use:   "top [PROXY]",
		Short: "Print rates, success and latency of workloads and edges",
		Long: `Print requests a second, the success rate, latency and TCP bytes a second of
workloads and of edges, from one workload to another. The numbers are those of
the proxies' own metrics, sampled twice: no Prometheus is needed. On a terminal
the tables are printed again after each interval, until Ctrl-C.

With PROXY, as name.namespace or the beginning of it, ask these proxies only.

The table of workloads has the requests that they received. Edges are counted by
the client's proxy, or by the server's if that of the client is not asked or does
not answer; clients without a certificate are "unknown" then. A request fails
without a response, with status 5xx, or with a status of gRPC that is the fault of
the server. Envoy counts the bytes of a connection when it ends.

A proxy that does not answer is named on standard error, and the exit code is 1.
The agents answer at port 15020. ` + reachCure + `.`,
		Example: "  outrigger top\n  outrigger top catalog --sort p99\n  outrigger top -n shop --once -o json\n" +
			"  outrigger top --interval 30s --once\n  outrigger top --agent 127.0.0.1:15020",
		Args: func(_ *cobra.Command, args []string) error {
			if len(args) > 1 {
				return cfg.Exit(exitUsage, fmt.Errorf("want at most one proxy, not %d", len(args)))
			}
			return nil
		},
		RunE: func(cmd *cobra.Command, args []string) error { return f.run(cmd, strings.Join(args, "")) },
	}
	f.add(cmd)
	f.addAgents(cmd)
	flags := cmd.Flags()
	flags.StringVarP(&f.namespace, "namespace", "n", "", "ask the proxies of this namespace only")
	f.complete(cmd, completeProxy(&f.askFlags))
	flags.DurationVar(&f.interval, "interval", defaultInterval, "time between two samples, from "+minInterval.String()+" to "+maxInterval.String()+"; Envoy updates latencies every 5s")
	flags.BoolVar(&f.once, "once", false, "print once and end, as without a terminal")
	flags.StringVar(&f.order, "sort", "rate", output.OneOf(slices.Sorted(maps.Keys(sorters()))))
	return cmd
}

func (f *topFlags) run(cmd *cobra.Command, name string) error {
	if orders := slices.Sorted(maps.Keys(sorters())); !slices.Contains(orders, f.order) {
		return f.cfg.Exit(exitUsage, fmt.Errorf("--sort %s is not known: write %s", f.order, output.OneOf(orders)))
	}
	if err := f.check(name); err != nil {
		return err
	}
	display := mesh.NewDisplay(mesh.Host{Out: cmd.OutOrStdout(), Dumb: f.cfg.Dumb})
	once := f.once || !display.Terminal || !f.forReaders()
	ctx, m := cmd.Context(), &meter{timeout: f.timeout}
	f.memory = newMemory()
	if err := f.begin(cmd, m, name); err != nil {
		return err
	}
	ticks := time.NewTicker(f.interval)
	defer ticks.Stop()
	for {
		select {
		case <-ctx.Done():
			return nil
		case <-ticks.C:
		}
		proxies, unseen, err := f.choose(ctx, cmd.ErrOrStderr(), name)
		if err != nil && (once || ctx.Err() != nil) {
			return err
		} else if err != nil {
			continue // the control plane may be back soon; find has printed why
		}
		t := m.measure(ctx, proxies, unseen)
		if ctx.Err() != nil {
			return nil
		}
		t.sort(f.order)
		var page bytes.Buffer
		if once {
			return f.last(cmd, t)
		}
		display = mesh.NewDisplay(mesh.Host{Out: cmd.OutOrStdout(), Dumb: f.cfg.Dumb}) // it may have changed
		f.cfg.Width = display.Width
		f.tables(&page, t, (display.Height-8)/2)
		for _, text := range t.Errors {
			_, _ = fmt.Fprintln(&page, "error:", text) // cannot fail
		}
		if err := repaint(cmd.OutOrStdout(), page.String(), f.cfg.Dumb); err != nil {
			return err
		}
	}
}

// check checks what the flags ask for.
func (f *topFlags) check(name string) error {
	switch {
	case f.interval < minInterval || f.interval > maxInterval:
		return f.cfg.Exit(exitUsage, fmt.Errorf("--interval %s must be from %s to %s", f.interval, minInterval, maxInterval))
	case len(f.agents) > 0 && (name != "" || f.namespace != ""):
		return f.cfg.Exit(exitUsage, errors.New("--agent names the proxies: leave out PROXY and -n"))
	}
	return nil
}

// begin takes the first sample of each proxy.
func (f *topFlags) begin(cmd *cobra.Command, m *meter, name string) error {
	proxies, _, err := f.choose(cmd.Context(), cmd.ErrOrStderr(), name)
	if err != nil {
		return err
	}
	first := m.measure(cmd.Context(), proxies, nil)
	if len(first.Errors) == len(proxies) {
		complainOf(cmd.ErrOrStderr(), first.Errors)
		return f.cfg.Exit(exitFailed, nil)
	}
	_, _ = fmt.Fprintf(cmd.ErrOrStderr(), "measuring %s for %s\n", count(len(proxies)-len(first.Errors), "proxy", "proxies"), f.interval) // only progress
	return nil
}

// last prints the only page.
func (f *topFlags) last(cmd *cobra.Command, t traffic) error {
	var err error
	if f.forReaders() {
		f.tables(cmd.OutOrStdout(), t, 0)
	} else {
		err = f.write(cmd.OutOrStdout(), t)
	}
	if err != nil {
		return err
	}
	if complainOf(cmd.ErrOrStderr(), t.Errors); len(t.Errors) > 0 {
		return f.cfg.Exit(exitFailed, nil)
	}
	return nil
}

// complainOf prints the proxies that do not answer.
func complainOf(out io.Writer, errs []string) {
	const most = 10
	for i, text := range errs {
		if i == most {
			_, _ = fmt.Fprintf(out, "error: and %d more proxies\n", len(errs)-most) // the terminal may be closed
			break
		}
		_, _ = fmt.Fprintln(out, "error:", text) // see above
	}
	if len(errs) > 0 {
		_, _ = fmt.Fprintln(out, reachCure) // see above
	}
}

// choose returns the proxies to ask, and the others.
func (f *topFlags) choose(ctx context.Context, complaints io.Writer, name string) (proxies, others []proxy, err error) {
	proxies, others, err = f.find(ctx, complaints, name)
	if err != nil {
		return nil, nil, err
	}
	if f.namespace != "" {
		chosen := []proxy{}
		for _, p := range proxies {
			if p.namespace == f.namespace {
				chosen = append(chosen, p)
			} else {
				others = append(others, p)
			}
		}
		if proxies = chosen; len(proxies) == 0 {
			return nil, nil, f.cfg.Exit(exitFailed, fmt.Errorf("no such proxy is connected in the namespace %s", f.namespace))
		}
	}
	if len(proxies) > maxMeasured {
		return nil, nil, f.cfg.Exit(exitFailed, fmt.Errorf("%d proxies are more than %d: choose some with PROXY or -n NAMESPACE", len(proxies), maxMeasured))
	}
	proxies, err = f.reachable(proxies, complaints)
	return proxies, others, err
}

// numberWidths are the widths of the columns with numbers, in characters, each with a space before
// it. It is never written to.
var numberWidths = []int{8, 8, 7, 7, 7, 7}

// tables prints the tables of workloads and edges, with at most most rows each if most is positive.
func (f *topFlags) tables(out io.Writer, t traffic, most int) {
	v := view{out: out, flags: &f.askFlags}
	if len(t.Workloads)+len(t.Edges) == 0 {
		v.say("No requests in %.1f s, by the metrics of %s.\n", t.Seconds, count(t.Proxies, "proxy", "proxies"))
		switch {
		case t.old != "":
			v.say("Metrics need Envoy 1.37 or newer: %s.\n", t.old)
		case !t.counting:
			v.say("They have counted none since they started: send some, or select the provider prometheus in defaultProviders.metrics or in a Telemetry object.\n")
		}
		return
	}
	namespaces := map[string]bool{}
	for _, one := range append(slices.Clone(t.Workloads), t.Edges...) {
		namespaces[one.DestinationNamespace] = true
		namespaces[one.SourceNamespace] = one.Source != "" || namespaces[one.SourceNamespace]
	}
	delete(namespaces, "")
	full := func(name, namespace string) string {
		if len(namespaces) > 1 && namespace != "" {
			return name + "." + namespace
		}
		return name
	}
	for i, list := range [][]flow{t.Workloads, t.Edges} {
		if len(list) == 0 {
			continue
		}
		shown, left := cut(&f.askFlags, list)
		if most > 0 && !f.all && len(shown) > most {
			shown, left = list[:most], len(list)-most
		}
		longest := len("WORKLOAD")
		for _, one := range shown {
			longest = max(longest, utf8.RuneCountInString(full(one.Source, one.SourceNamespace)+arrow+full(one.Destination, one.DestinationNamespace)))
		}
		width, numbers := v.namesWidth(longest)
		v.row(width, []string{"WORKLOAD", "EDGE"}[i], []string{"REQ/S", "SUCCESS", "P50", "P95", "P99", "TCP/S"}[:numbers])
		for _, one := range shown {
			name := columns.Shorten(full(one.Destination, one.DestinationNamespace), width)
			if one.Source != "" {
				name = between(full(one.Source, one.SourceNamespace), full(one.Destination, one.DestinationNamespace), width)
			}
			success, moved := "-", "-"
			if one.Bytes > 0 {
				moved = size(one.Bytes)
			}
			if one.Success != nil {
				success = fmt.Sprintf("%.2f%%", *one.Success*100)
			}
			v.row(width, name, []string{perSecond(one.Rate), success, millis(one.P50), millis(one.P95), millis(one.P99), moved}[:numbers])
		}
		v.more(left)
		v.say("\n")
	}
	v.say("%s in %.1f s.\n", count(t.Proxies, "proxy", "proxies"), t.Seconds)
}

// row prints a name in a width, and numbers.
func (v view) row(width int, name string, numbers []string) {
	text := name + strings.Repeat(" ", max(0, width-utf8.RuneCountInString(name)))
	for i, cell := range numbers {
		text += fmt.Sprintf("%*s", numberWidths[i], cell)
	}
	_, _ = fmt.Fprintln(columns.Raw(v.out), plain(text)) // the terminal may be closed
}

// namesWidth returns the width of the column of names, and the number of columns behind it. A terminal is
// filled; without a limit, the longest name fits.
func (v view) namesWidth(longest int) (width, numbers int) {
	if width = v.flags.width(); width == columns.Unlimited {
		return longest, len(numberWidths)
	}
	for numbers < len(numberWidths) && width-numberWidths[numbers] >= columns.Least {
		width -= numberWidths[numbers]
		numbers++
	}
	return width, numbers
}

// arrow is between the names of an edge.
const arrow = " → "

// between returns the names of an edge in a width. It shortens the longer one, or both.
func between(from, to string, width int) string {
	width -= utf8.RuneCountInString(arrow)
	a, b := utf8.RuneCountInString(from), utf8.RuneCountInString(to)
	if a+b > width {
		half := width / 2
		from, to = columns.Shorten(from, max(half, width-b)), columns.Shorten(to, max(width-half, width-a))
	}
	return from + arrow + to
}

// perSecond formats a rate.
func perSecond(n float64) string {
	if n < 99_999 {
		return fmt.Sprintf("%.1f", n)
	}
	return size(n)
}

// size formats a number with a suffix for thousands, in at most 5 characters.
func size(n float64) string {
	for _, suffix := range []string{"", "k", "M", "G"} {
		switch {
		case n < 9.95 && suffix != "":
			return fmt.Sprintf("%.1f%s", n, suffix)
		case n < 999.5:
			return fmt.Sprintf("%.0f%s", n, suffix)
		}
		n /= 1000
	}
	return fmt.Sprintf("%.0fT", min(n, 9999))
}

// millis formats a number of milliseconds.
func millis(n *float64) string {
	switch {
	case n == nil:
		return "-"
	case *n < 10:
		return fmt.Sprintf("%.1fms", *n)
	case *n < 1000:
		return fmt.Sprintf("%.0fms", *n)
	case *n < 100_000:
		return fmt.Sprintf("%.1fs", *n/1000)
	}
	return fmt.Sprintf("%.0fs", min(*n/1000, 99_999))
}
