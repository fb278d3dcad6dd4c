// SPDX-License-Identifier: Apache-2.0
// Copyright The Outrigger Authors

package inspect

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"net/url"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/spf13/cobra"

	"github.com/outrigger-mesh/outrigger/controlplane/report"
	"github.com/outrigger-mesh/outrigger/internal/columns"
	"github.com/outrigger-mesh/outrigger/tool/deep"
)

const (
	// maxProposed is the maximum size of the proposed objects in bytes. A form has up to three times
	// as many, and control planes read 8 MiB.
	maxProposed = 2 << 20
	// maxValidated is how many different configurations an Envoy validates.
	maxValidated = 20
)

// whatIfFlags are the flags of what-if.
type whatIfFlags struct {
	askFlags
	files     []string
	namespace string
	remove    bool
	envoy     string
}

func newWhatIfCommand(cfg Config) *cobra.Command {
	f := whatIfFlags{askFlags: askFlags{cfg: cfg}}
	cmd := &cobra.Command{
		Use:   "what-if -f FILE",
		Short: "Print what a change of objects would do to the proxies",
		Long: `Print which proxies would receive other configuration if the objects of the files
were applied, how many bytes, which listeners would close connections, which problems
would appear, and which requests would be denied, allowed or routed otherwise. Nothing
is applied. An object replaces the stored one with its name.

The control plane tries a few requests to the ports of changed proxies and to changed
virtual hosts: GET / and the paths, methods and hosts that changed policies and routes
name, from the identities of connected proxies and from a client without a certificate.
Other requests, such as those with headers or tokens, may change without a notice.

With --envoy, a real Envoy on this machine validates the configuration that each
proxy would have; use the version of the proxies. Secrets, modules of WasmPlugins
and what only traffic shows are not validated. Lua is compiled, but does not run.

Objects of other API groups, such as Deployments, are skipped; those of the Gateway
API are not supported. The exit code is 0, or 1 if a problem would appear, a request
that succeeds now would be denied or lead nowhere, or Envoy refuses a configuration.`,
		Example: "  outrigger what-if -f config/\n" +
			"  kustomize build . | outrigger what-if -f - --envoy bin/envoy\n" +
			"  outrigger what-if -f catalog.yaml --delete -o json",
		Args: cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error { return f.run(cmd) },
	}
	cmd.Flags().StringSliceVarP(&f.files, "filename", "f", nil, "file, directory (with its subdirectories) or - for standard input; can be repeated")
	cmd.Flags().StringVarP(&f.namespace, "namespace", "n", "", "namespace of objects that name none (default \"default\")")
	cmd.Flags().BoolVar(&f.remove, "delete", false, "the objects would be deleted")
	cmd.Flags().StringVar(&f.envoy, "envoy", "", "program of an Envoy that validates the configurations")
	f.add(cmd)
	return cmd
}

func (f *whatIfFlags) run(cmd *cobra.Command) error {
	if len(f.files) == 0 {
		return f.cfg.Exit(exitUsage, errors.New("write -f FILE with the objects"))
	}
	fields, err := f.fields(cmd.InOrStdin())
	if err != nil {
		return f.cfg.Exit(exitUsage, err)
	}
	addresses, err := f.addresses()
	if err != nil {
		return err
	}
	change := proposal{flags: f, fields: fields, addresses: addresses}
	if err := change.run(cmd.Context()); err != nil {
		return f.cfg.Exit(exitFailed, err)
	}
	if !f.forReaders() {
		err = f.write(cmd.OutOrStdout(), change.sum)
	} else {
		err = view{out: cmd.OutOrStdout(), now: time.Now(), flags: &f.askFlags}.whatIf(change.sum)
	}
	refused := slices.ContainsFunc(change.sum.Verdicts, func(v report.Verdict) bool { return v.Error != "" })
	fails := slices.ContainsFunc(change.sum.Flips, func(x report.Flipped) bool { return x.Fails })
	if err == nil && (len(change.sum.Problems) > 0 || refused || fails) {
		err = f.cfg.Exit(exitFailed, nil)
	}
	return err
}

// fields returns the form with the objects.
func (f *whatIfFlags) fields(in io.Reader) (url.Values, error) {
	out, size := url.Values{"namespace": {f.namespace}}, 0
	if f.remove {
		out.Set("delete", "true")
	}
	files, err := filesIn(f.files)
	if err != nil {
		return nil, err
	}
	for _, name := range files {
		source, from := name, io.Reader(nil)
		if name == "-" {
			source, from = "standard input", in
		} else {
			file, err := os.Open(name)
			if err != nil {
				return nil, err
			}
			defer func() { _ = file.Close() }() // read-only: closing cannot lose data
			from = file
		}
		text, err := io.ReadAll(io.LimitReader(from, maxProposed+1))
		if err != nil {
			return nil, err
		}
		if size += len(text); size > maxProposed {
			return nil, fmt.Errorf("the objects have more than %d bytes: propose fewer at once", maxProposed)
		}
		out.Add("objects", string(text))
		out.Add("source", source)
	}
	return out, nil
}

// filesIn replaces directories by the YAML and JSON files in them. Like a control plane, it skips
// hidden files and directories.
func filesIn(names []string) (out []string, err error) {
	for _, name := range names {
		if info, err := os.Stat(name); err != nil || !info.IsDir() {
			out = append(out, name) // opening it says what is wrong
			continue
		}
		root := filepath.Clean(name) + string(filepath.Separator) // the target directory of a link
		err := filepath.WalkDir(root, func(path string, d fs.DirEntry, err error) error {
			switch hidden := strings.HasPrefix(d.Name(), ".") && path != root; {
			case err != nil:
				return err
			case hidden && d.IsDir():
				return filepath.SkipDir
			case !hidden && d.Type().IsRegular() && slices.Contains([]string{".yaml", ".yml", ".json"}, filepath.Ext(path)):
				out = append(out, path)
			}
			return nil
		})
		if err != nil {
			return nil, err
		}
	}
	return out, nil
}

// proposal asks the control planes about a change, and an Envoy about its result.
type proposal struct {
	flags     *whatIfFlags
	fields    url.Values
	addresses []string
	sum       report.WhatIf
	// at are the control planes of the proxies.
	at map[string]string
}

func (p *proposal) run(ctx context.Context) error {
	p.at = map[string]string{}
	for i, a := range ask[report.WhatIf](ctx, p.addresses, question{path: "whatif", fields: p.fields, form: true}, p.flags.timeout) {
		if a.err != nil {
			return noAnswer(a.address, a.err)
		}
		for _, proxy := range a.value.Proxies {
			p.at[proxy.Proxy] = a.address
		}
		if i == 0 {
			p.sum = a.value
			continue
		}
		p.sum.All += a.value.All
		p.sum.Proxies = append(p.sum.Proxies, a.value.Proxies...)
		p.sum.Problems = append(p.sum.Problems, a.value.Problems...)
		p.sum.Solved = append(p.sum.Solved, a.value.Solved...)
		p.addFlips(a.value)
	}
	slices.SortFunc(p.sum.Flips, report.Flipped.Compare)
	p.sum.Problems, p.sum.Solved = distinctProblems(p.sum.Problems), distinctProblems(p.sum.Solved)
	slices.SortFunc(p.sum.Proxies, func(a, b report.Affected) int { return strings.Compare(a.Proxy, b.Proxy) })
	if p.flags.envoy == "" {
		return nil
	}
	return p.validate(ctx)
}

// addFlips adds the requests that another control plane tried.
func (p *proposal) addFlips(w report.WhatIf) {
	p.sum.Requests += w.Requests
	p.sum.Untried = append(p.sum.Untried, w.Untried...)
	for _, x := range w.Flips {
		i := slices.IndexFunc(p.sum.Flips, func(y report.Flipped) bool {
			y.Proxy = x.Proxy
			return y.Compare(x) == 0 && y.By == x.By && (y.Rule == nil) == (x.Rule == nil) && (y.Rule == nil || *y.Rule == *x.Rule)
		})
		if i < 0 {
			p.sum.Flips = append(p.sum.Flips, x)
			continue
		}
		same := &p.sum.Flips[i]
		same.Proxies += x.Proxies
		same.Clients = append(same.Clients, x.Clients...)
		slices.Sort(same.Clients)
		same.Clients = slices.Compact(same.Clients)
	}
}

// distinctProblems returns problems without those that several replicas report.
func distinctProblems(list []report.Problem) []report.Problem {
	slices.SortFunc(list, func(a, b report.Problem) int {
		return cmp.Or(a.Object.Compare(b.Object), strings.Compare(a.Reason, b.Reason))
	})
	return slices.CompactFunc(list, func(a, b report.Problem) bool { return a.Object == b.Object && a.Reason == b.Reason })
}

// validate lets Envoy validate each different configuration.
func (p *proposal) validate(ctx context.Context) error {
	index := map[string]int{}
	for _, a := range p.sum.Proxies {
		if i, ok := index[a.Digest]; ok {
			p.sum.Verdicts[i].Alike++
			continue
		}
		if len(p.sum.Verdicts) == maxValidated {
			p.sum.Unvalidated++
			continue
		}
		index[a.Digest] = len(p.sum.Verdicts)
		text, err := p.verdict(ctx, a.Proxy)
		if err != nil {
			return err
		}
		p.sum.Verdicts = append(p.sum.Verdicts, report.Verdict{Proxy: a.Proxy, Alike: 1, Error: text})
	}
	return nil
}

// verdict returns why Envoy refuses the configuration of a proxy; empty if it accepts it.
func (p *proposal) verdict(ctx context.Context, proxy string) (string, error) {
	p.fields.Set("proxyID", proxy)
	a := ask[report.WhatIf](ctx, []string{p.at[proxy]}, question{path: "whatif", fields: p.fields, form: true}, p.flags.timeout)[0]
	switch {
	case a.err != nil:
		return "", noAnswer(a.address, a.err)
	case len(a.value.Static) == 0:
		return "", fmt.Errorf("%s is not connected to %s any more: repeat the command", proxy, a.address)
	}
	text, err := deep.Envoy(ctx, p.flags.envoy, a.value.Static)
	if err != nil {
		return "", fmt.Errorf("validate the configuration of %s: %w", proxy, err)
	}
	return plain(text), nil
}

// whatIf prints what a change would do.
func (v view) whatIf(w report.WhatIf) error {
	for _, o := range w.Objects {
		v.say("%s %s\n", named(o.Ref), o.Action)
	}
	if w.Skipped > 0 {
		v.say("%s for others skipped\n", count(w.Skipped, "object", "objects"))
	}
	v.say("\n%s of %d would receive other configuration\n", count(len(w.Proxies), "proxy", "proxies"), w.All)
	if len(w.Proxies) > 0 {
		if err := v.affected(w.Proxies); err != nil {
			return err
		}
	}
	if len(w.Proxies) > 0 {
		v.flips(w)
	}
	for _, list := range []struct {
		title    string
		problems []report.Problem
	}{{"would appear", w.Problems}, {"would disappear", w.Solved}} {
		if len(list.problems) == 0 {
			continue
		}
		v.say("\n%s %s:\n", count(len(list.problems), "problem", "problems"), list.title)
		shown, left := cut(v.flags, list.problems)
		for _, p := range shown {
			v.say("  %s: %s\n", named(p.Object), oneLine(p.Reason))
		}
		v.more(left)
	}
	accepted := 0
	for _, e := range w.Verdicts {
		if e.Error == "" {
			accepted += e.Alike
			continue
		}
		v.say("\nENVOY REFUSES the configuration of %s: %s\n", count(e.Alike, "proxy", "proxies")+" such as "+e.Proxy, e.Error)
	}
	if accepted > 0 {
		v.say("\nEnvoy accepts the configuration of %s\n", count(accepted, "proxy", "proxies"))
	}
	if w.Unvalidated > 0 {
		v.say("The configuration of %s was not validated: only %d different ones are\n", count(w.Unvalidated, "proxy", "proxies"), maxValidated)
	}
	return nil
}

// affected prints a row for each proxy and type.
func (v view) affected(proxies []report.Affected) error {
	v.say("\n")
	shown, left := cut(v.flags, proxies)
	rows := [][]string{{"PROXY", "TYPE", "ADDED", "CHANGED", "REMOVED", "BYTES"}}
	for _, p := range shown {
		for _, t := range p.Types {
			rows = append(rows, []string{p.Proxy, strings.ToUpper(t.Type), strconv.Itoa(t.Added), strconv.Itoa(t.Changed), strconv.Itoa(t.Removed), strconv.Itoa(t.Bytes)})
		}
	}
	if _, err := v.columns(rows, "PROXY"); err != nil {
		return err
	}
	v.more(left)
	for _, p := range shown {
		if len(p.Drained) > 0 {
			v.say("\n%s: all connections of these listeners would close: %s\n", p.Proxy, few(p.Drained))
		}
		if len(p.ChainsDrained) > 0 {
			v.say("\n%s: connections of changed filter chains would close: %s\n", p.Proxy, few(p.ChainsDrained))
		}
	}
	return nil
}

// flips prints the requests whose result would change.
func (v view) flips(w report.WhatIf) {
	v.say("\n%s tried, %s\n", count(w.Requests, "request", "requests"), count(len(w.Flips), "result would change", "results would change"))
	shown, left := cut(v.flags, w.Flips)
	for _, x := range shown {
		what := strings.TrimSpace(x.Method + " " + x.Host + x.Path)
		if x.Port > 0 {
			what = strings.TrimSpace(fmt.Sprintf("%s %s:%d%s", x.Method, x.Host, x.Port, x.Path))
		}
		if x.Method == "" {
			what = "a connection to " + what
		}
		title := "Changes"
		switch {
		case x.Routed == "" && x.Fails:
			title = "Now denied"
		case x.Routed == "":
			title = "Now allowed"
		case x.Fails:
			title = "Now fails"
		}
		v.say("\n%s\n", columns.Shorten(oneLine(title+": "+what), v.flags.width()))
		if x.Routed == "" {
			v.field("from", few(x.Clients))
			why := x.Reason
			switch {
			case x.Rule != nil:
				why = "by " + ruleText(*x.Rule)
			case x.By == "no-rule":
				why = "as no rule that allows requests matches"
			}
			if x.Fails {
				v.field("denied", why)
			} else {
				v.field("before", "denied, "+why)
			}
		} else {
			v.field("before", x.Before)
			v.field("after", x.After)
		}
		proxies := x.Proxy
		if x.Proxies > 1 {
			proxies = count(x.Proxies, "proxy", "proxies") + " such as " + proxies
		}
		if x.Routed != "" {
			proxies += ", routes " + x.Routed
		}
		v.field("at", proxies)
	}
	v.more(left)
	v.say("\nOther requests, headers and tokens were not tried\n")
	for _, text := range w.Untried {
		v.say("%s\n", text)
	}
}
