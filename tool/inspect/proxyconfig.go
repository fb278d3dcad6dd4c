// SPDX-License-Identifier: Apache-2.0
// Copyright The Outrigger Authors

package inspect

import (
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"net/url"
	"os"
	"slices"
	"strings"
	"time"

	"github.com/spf13/cobra"

	"github.com/outrigger-mesh/outrigger/controlplane/report"
)

// proxyConfigFlags are the flags of the commands that print the resources of a proxy.
type proxyConfigFlags struct {
	askFlags
	namespace, file, admin string
	diff, live             bool
	selection              selection
	parts                  []part
	complaints             io.Writer // for what is not the output
}

func newProxyConfigCommand(cfg Config) *cobra.Command {
	cmd := &cobra.Command{
		Use:     "proxy",
		Aliases: []string{"proxy-config", "pc"},
		Short:   "Print the configuration of a proxy, or change its log levels",
		Long: `Print the clusters, listeners, routes, endpoints or extensions that the control plane
gave to a proxy, or those that its Envoy has; the certificates, the bootstrap and the
log levels of an Envoy.`,
		Example: "  outrigger proxy clusters frontend\n  outrigger proxy all frontend --diff",
		Args:    cobra.NoArgs,
	}
	var all []string
	for _, p := range parts() {
		cmd.AddCommand(newPartCommand(cfg, p.name, p.aliases, p.filters, p))
		all = append(all, p.filters...)
	}
	slices.Sort(all)
	cmd.AddCommand(newSecretsCommand(cfg), newRootsCommand(cfg), newBootstrapCommand(cfg), newLogCommand(cfg))
	cmd.AddCommand(newPartCommand(cfg, "all", []string{"a"}, slices.Compact(all), parts()...))
	return cmd
}

// newPartCommand returns the command that prints parts of the configuration of a proxy.
func newPartCommand(cfg Config, name string, aliases, filters []string, selected ...part) *cobra.Command {
	f := proxyConfigFlags{askFlags: askFlags{cfg: cfg}, parts: selected}
	what := name
	switch {
	case len(selected) > 1:
		what = "clusters, listeners, routes, endpoints and ECDS"
	case name == extensions:
		what = "extensions (ECDS)"
	}
	cmd := &cobra.Command{
		Use:     name + " PROXY",
		Aliases: aliases,
		Short:   "Print the " + what + " of a proxy",
		Long: `Print the ` + what + ` that the control plane gave to
a proxy, which is named as name.namespace or the beginning of it.

With -f, the answer of /debug/config_dump, or of /config_dump of Envoy's admin port,
is read from a file. With --live, the Envoy of PROXY is asked instead of the control
plane; with --admin, the one at that address, without PROXY. With --diff, the names of the
resources are printed that only the Envoy or the control plane has, or that differ.
Resources of Envoy's bootstrap, listeners that drain, virtual hosts and filters that
Envoy did not request and the place of a Wasm module, which the agent changes, are no
differences. Of endpoints, the address, weight, locality and priority are compared.
` + reachLong + `

Each filter selects in the tables that it belongs to. Names are compared in
full, except by --fqdn.
OUTLIER CHECK is FAILED for an endpoint that the outlier detection of the Envoy ejected;
only the Envoy knows it. STATUS of clusters and listeners is there if one is WARMING:
not in use yet, or DRAINING.
-o json and -o yaml print the selected resources. Columns without values are left
out. The exit code is 0, or 1 if there are differences or an error.`,
		Example: "  outrigger proxy " + name + " frontend\n  outrigger proxy " + name + " frontend --live\n  outrigger proxy " + name + " frontend.shop -o json\n" +
			"  curl localhost:15000/config_dump?include_eds | outrigger proxy " + name + " -f -\n" +
			"  outrigger proxy " + name + " frontend --diff",
		RunE: func(cmd *cobra.Command, args []string) error { return f.run(cmd, args) },
	}
	f.selection.add(cmd, filters)
	cmd.Flags().StringVarP(&f.namespace, "namespace", "n", "", "namespace of a proxy that is named without one")
	cmd.Flags().StringVarP(&f.file, "file", "f", "", "file with a config_dump, or - for standard input, to read instead")
	cmd.Flags().StringVar(&f.admin, "admin", "", "admin port of an Envoy to ask instead, as host:port")
	cmd.Flags().BoolVar(&f.live, "live", false, "print what the Envoy of PROXY has, not what the control plane gave")
	cmd.Flags().BoolVar(&f.diff, "diff", false, "compare with what the Envoy of PROXY or --admin has")
	f.addAsked(cmd, "short") // the name that istioctl has for the table
	f.complete(cmd, completeProxy(&f.askFlags))
	f.completeFilters(cmd, filters)
	return cmd
}

// check returns what is wrong with the arguments.
func (f *proxyConfigFlags) check(args []string) error {
	switch {
	case len(args) > 1:
		return fmt.Errorf("want one proxy, not %d", len(args))
	case len(args) == 1 && f.file != "":
		return errors.New("write PROXY or -f FILE, not both")
	case f.live && (f.diff || f.file != "" || f.admin != ""):
		return errors.New("--live asks the Envoy of PROXY: leave out --diff, -f and --admin")
	case f.diff && f.admin == "" && f.file != "":
		return errors.New("--diff compares with an Envoy: also write --admin HOST:PORT")
	case f.file != "" && f.admin != "" && !f.diff:
		return errors.New("write -f or --admin; with --diff, both are compared")
	case len(args) == 0 && f.file == "" && (f.admin == "" || f.diff):
		return errors.New("no proxy is named: write one, as in frontend.shop, or -f FILE with a config_dump")
	case f.diff && f.selection.status != "":
		return errors.New("--diff does not compare the health of endpoints: leave out --status")
	}
	return f.selection.known()
}

func (f *proxyConfigFlags) run(cmd *cobra.Command, args []string) error {
	if err := f.check(args); err != nil {
		return f.cfg.Exit(exitUsage, err)
	}
	f.complaints = cmd.ErrOrStderr()
	var given, has *configuration
	var err error
	if f.admin == "" && !f.live || f.diff {
		if f.file != "" {
			given, err = f.saved(cmd.InOrStdin())
		} else {
			given, err = f.given(cmd, args[0])
		}
		if err != nil {
			return err
		}
	}
	if f.admin != "" || f.live || f.diff {
		named := f.admin == ""
		done, err := f.envoy(cmd, strings.Join(args, ""))
		if err != nil {
			return err
		}
		defer done()
		has, err = askEnvoy(cmd.Context(), f.admin, f.timeout)
		if err == nil && !f.diff && slices.ContainsFunc(f.parts, func(p part) bool { return p.name == "endpoints" }) {
			err = has.askChecks(cmd.Context(), f.admin, f.timeout)
		}
		if err != nil && named {
			err = fmt.Errorf("%w; outrigger status %s says how the proxy is, and without --live and --diff the control plane answers", err, args[0])
		}
		if err != nil {
			return f.fail(err)
		}
	}
	v := view{out: cmd.OutOrStdout(), now: time.Now(), flags: &f.askFlags}
	if f.diff {
		return f.compare(v, given, has)
	}
	if given == nil {
		given = has
	}
	for _, p := range f.parts {
		given.keep(p, f.selection)
	}
	if f.forReaders() {
		return v.configuration(given, f.parts)
	}
	if err := f.writeResources(v.out, given); err != nil {
		return err
	}
	view{out: f.complaints, flags: v.flags}.omissions(given)
	return nil
}

// readFile reads the file of the flag -f, and returns its name for messages.
func (f *proxyConfigFlags) readFile(in io.Reader) (raw []byte, name string, err error) {
	if name = f.file; name == "-" {
		name = "standard input"
	} else {
		file, err := os.Open(name)
		if err != nil {
			return nil, name, err
		}
		defer func() { _ = file.Close() }() // read-only: closing cannot lose data
		in = file
	}
	raw, err = io.ReadAll(io.LimitReader(in, maxAnswer+1))
	if err == nil && len(raw) > maxAnswer {
		err = fmt.Errorf("it has more than %d bytes", maxAnswer)
	}
	if err != nil && !errors.As(err, new(*fs.PathError)) { // which names the file
		err = fmt.Errorf("read %s: %w", name, err)
	}
	return raw, name, err
}

// saved reads a dump from a file.
func (f *proxyConfigFlags) saved(in io.Reader) (*configuration, error) {
	raw, name, err := f.readFile(in)
	if err != nil {
		return nil, f.unread(err)
	}
	c, err := readDump(raw)
	if err != nil {
		return nil, f.fail(fmt.Errorf("read %s: %w", name, err))
	}
	c.from = name
	return c, nil
}

// named returns the name of a proxy with the namespace of the flag.
func (f *proxyConfigFlags) named(name string) string {
	for _, kind := range []string{"pod/", "deploy/", "deployment/"} { // as istioctl; the name of a Deployment begins those of its Pods
		name = strings.TrimPrefix(name, kind)
	}
	if f.namespace != "" && !strings.HasSuffix(name, "."+f.namespace) {
		name += "." + f.namespace
	}
	return name
}

// given asks the control planes what a proxy was given.
func (f *proxyConfigFlags) given(cmd *cobra.Command, name string) (*configuration, error) {
	addresses, err := f.addresses()
	if err != nil {
		return nil, err
	}
	name = f.named(name)
	answers := ask[report.Replica](cmd.Context(), addresses, question{path: "proxies"}, f.timeout)
	if complain(cmd.ErrOrStderr(), answers) == len(answers) {
		return nil, f.cfg.Exit(exitFailed, errors.New("with --live, the Envoy of a proxy on this machine is asked instead"))
	}
	if err := pick(answers, name); err != nil {
		return nil, f.cfg.Exit(exitFailed, err)
	}
	for _, a := range answers {
		if len(a.value.Proxies) == 0 {
			continue
		}
		name = a.value.Proxies[0].Name
		dump := ask[json.RawMessage](cmd.Context(), []string{a.address}, question{path: "config_dump", fields: url.Values{"proxyID": {name}}}, f.timeout)[0]
		var c *configuration
		if err = dump.err; err == nil {
			c, err = readDump(dump.value)
		}
		if err == nil {
			c.from = "the control plane for " + name
			return c, nil
		}
		err = fmt.Errorf("the configuration of %s from %s: %w", name, a.address, err)
	}
	return nil, f.fail(err)
}

// unread returns the error of a file: one that cannot be read is a wrong command line.
func (f *proxyConfigFlags) unread(err error) error {
	if path := (*fs.PathError)(nil); errors.As(err, &path) {
		return f.cfg.Exit(exitUsage, err)
	}
	return f.fail(err)
}

// fail returns an error for the exit code. Its text may contain texts of proxies.
func (f *proxyConfigFlags) fail(err error) error {
	return f.cfg.Exit(exitFailed, errors.New(oneLine(err.Error())))
}
