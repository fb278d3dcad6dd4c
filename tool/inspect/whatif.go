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
	"strings"
	"time"

	"github.com/spf13/cobra"

	"github.com/outrigger-mesh/outrigger/controlplane/report"
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
	failOn    []string
}

// What --fail-on names.
const (
	failChanges = "changes"
	failDenied  = "denied"
	failBroken  = "broken"
	failNone    = "none"
)

// failures are the values of --fail-on. It is never written to.
var failures = []string{failChanges, failDenied, failBroken, failNone}

func newWhatIfCommand(cfg Config) *cobra.Command {
	f := whatIfFlags{askFlags: askFlags{cfg: cfg}}
	cmd := &cobra.Command{
		Use:   "what-if -f FILE",
		Short: "Print what a change of objects would do to the proxies",
		Long: `Print which proxies would receive other configuration if the objects of the files
were applied, how many bytes, which listeners would close connections, which problems
would appear, and which requests would be denied, allowed or routed otherwise. Nothing
is applied. An object replaces the stored one with its name.

The control plane tries requests to the ports of changed proxies, to changed virtual
hosts and to changed TCP and TLS listeners: GET /, and for each rule and route, before
and after the change, a request that matches it and others that differ in one value.
They have the paths, methods, hosts, headers, parameters, tokens, senders, addresses,
ports and SNI that rules and routes name; of a regular expression, one example. Senders
are clients with the identities of proxies, and one without a certificate. Metadata of
filters and requests that nothing names are not tried, and external authorizers are not
asked. The number of requests is bounded, in a fixed order; what is left out is counted.

With --envoy, a real Envoy on this machine validates the configuration that each
proxy would have; use the version of the proxies. Secrets, modules of WasmPlugins
and what only traffic shows are not validated. Lua is compiled, but does not run.

Objects of the Gateway API and Ingresses are converted as in a push, with the Services,
Secrets and labels of namespaces of now; the conditions that they would have are
printed, and of others those that change. Other objects, such as Deployments, are
skipped: name what they deploy in a ServiceEntry, or deploy it before.

The exit code is as with kubectl diff: 0 if nothing that --fail-on names happens, 1 if
it does, and 2 if there is no answer. --fail-on takes several of these:
  changes   a proxy would receive other configuration
  denied    a request that is allowed now would be denied
  broken    a request would lead nowhere, a problem would appear, an object would not
            be accepted or its references not resolved, or Envoy refuses a configuration
  none      nothing`,
		Example: "  outrigger what-if -f config/\n" +
			"  kustomize build . | outrigger what-if -f - --envoy bin/envoy\n" +
			"  outrigger what-if -f catalog.yaml --delete -o json\n" +
			"  outrigger what-if -f deny.yaml --fail-on broken   # a denial is intended",
		Args: cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error { return f.run(cmd) },
	}
	cmd.Flags().StringSliceVarP(&f.files, "filename", "f", nil, "file, directory (with its subdirectories) or - for standard input; can be repeated")
	cmd.Flags().StringVarP(&f.namespace, "namespace", "n", "", "namespace of objects that name none (default \"default\")")
	cmd.Flags().BoolVar(&f.remove, "delete", false, "the objects would be deleted")
	cmd.Flags().StringVar(&f.envoy, "envoy", "", "program of an Envoy that validates the configurations")
	cmd.Flags().StringSliceVar(&f.failOn, "fail-on", []string{failDenied, failBroken}, "what the exit code 1 is for: changes, denied, broken or none")
	completeValue(cmd, "fail-on", func() []string { return slices.Clone(failures) })
	f.add(cmd)
	return cmd
}

// run prints the answer. Like kubectl diff, it returns the exit code 1 for what --fail-on names only.
func (f *whatIfFlags) run(cmd *cobra.Command) error {
	if len(f.files) == 0 {
		return f.cfg.Exit(exitUsage, errors.New("write -f FILE with the objects"))
	}
	for _, name := range f.failOn {
		if !slices.Contains(failures, name) {
			return f.cfg.Exit(exitUsage, fmt.Errorf("--fail-on %s is unknown: write one or several of %s, as in --fail-on denied,broken", name, strings.Join(failures, ", ")))
		}
		if name == failNone && len(f.failOn) > 1 {
			return f.cfg.Exit(exitUsage, errors.New("--fail-on none excludes other values: write it alone"))
		}
	}
	fields, err := f.fields(cmd.InOrStdin())
	if err != nil {
		return f.cfg.Exit(exitUsage, err)
	}
	addresses, err := f.addresses()
	if err != nil {
		return f.cfg.Exit(exitUsage, err)
	}
	change := proposal{flags: f, fields: fields, addresses: addresses}
	if err := change.run(cmd.Context()); err != nil {
		return f.cfg.Exit(exitUsage, err)
	}
	failed := f.failed(change.sum)
	if !f.forReaders() {
		err = f.write(cmd.OutOrStdout(), change.sum)
	} else {
		v := view{out: cmd.OutOrStdout(), now: time.Now(), flags: &f.askFlags}
		if err = v.whatIf(change.sum); len(failed) > 0 {
			v.say("\nThe exit code is 1 (--fail-on): %s\n", strings.Join(failed, ", "))
		}
	}
	switch {
	case err != nil:
		return f.cfg.Exit(exitUsage, err)
	case len(failed) > 0:
		return f.cfg.Exit(exitFailed, nil)
	}
	return nil
}

// failed returns what happens of that which --fail-on names.
func (f *whatIfFlags) failed(w report.WhatIf) []string {
	fails := func(routed bool) bool {
		return slices.ContainsFunc(w.Flips, func(x report.Flipped) bool { return x.Fails && (x.Routed != "") == routed })
	}
	refused := slices.ContainsFunc(w.Verdicts, func(v report.Verdict) bool { return v.Error != "" })
	happens := map[string]bool{
		failChanges: len(w.Proxies) > 0, failDenied: fails(false), failBroken: fails(true) || refused || len(w.Problems) > 0 || rejects(w.Statuses),
	}
	return slices.DeleteFunc(slices.Clone(failures), func(name string) bool { return !happens[name] || !slices.Contains(f.failOn, name) })
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
		same.Others = max(same.Others, x.Others)
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
