// SPDX-License-Identifier: Apache-2.0
// Copyright The Outrigger Authors

package main

import (
	"fmt"
	"slices"
	"strings"
	"time"

	"github.com/spf13/cobra"
	"github.com/spf13/pflag"

	"github.com/outrigger-mesh/outrigger/agent"
	"github.com/outrigger-mesh/outrigger/agent/logging"
	"github.com/outrigger-mesh/outrigger/bootstrap/node"
	"github.com/outrigger-mesh/outrigger/envoy"
	"github.com/outrigger-mesh/outrigger/internal/collateral"
)

// process is the process that the commands run in.
type process struct {
	// name is the name by which the program was called; "" means ownName.
	name    string
	environ []string
	// dropped are the unknown flags of the command line.
	dropped []string
	// now is closed by a second signal: stop without draining.
	now <-chan struct{}
}

const rootLong = `outrigger-agent runs beside an application: it writes Envoy's bootstrap, runs and
watches Envoy, relays its configuration from the control plane, gets its
certificates, and serves the status port. It replaces Istio's pilot-agent:
arguments, environment, files, sockets and ports are the same.

Exit codes: 0 after a clean stop (SIGTERM or SIGINT), 1 if Envoy exited
unexpectedly, 126 if istio-iptables --run-validation finds no redirection, 255 after any
other error.`

func newRootCommand(p process) *cobra.Command {
	root := &cobra.Command{
		Use:   ownName,
		Short: "The node agent of a service mesh with stock Envoy",
		Long:  rootLong,
		Example: "  outrigger-agent proxy sidecar --domain default.svc.cluster.local\n" +
			"  outrigger-agent wait --timeoutSeconds 30\n" +
			"  outrigger-agent request GET config_dump\n" +
			"  outrigger-agent version -o json",
		SilenceErrors: true,
		SilenceUsage:  true,
		PersistentPreRun: func(cmd *cobra.Command, _ []string) {
			if cmd.Name() != proxyName { // which logs them
				for _, flag := range p.dropped {
					cmd.PrintErrf("%s: unknown flag %s is ignored\n", cmd.Root().Name(), flag)
				}
			}
		},
	}
	logs := &logging.Flags{}
	logs.Add(root.PersistentFlags())
	root.AddCommand(newProxyCommand(p, logs), newWaitCommand(), newRequestCommand(p), newCaptureCommand(p, logs), newCleanCommand(p, logs), newHandoverCommand(), collateral.New())
	collateral.AddBuildVersion(root, version)
	if p.name != "" {
		rename(root, p.name)
	}
	return root
}

// defaultMeshConfig is the default of --meshConfig.
const defaultMeshConfig = "./etc/istio/config/mesh"

// proxyFlags are the flags of proxy.
type proxyFlags struct {
	agent.Flags
	stsPort               int
	tokenManagerPlugin    string
	envoyRestart          string
	deprecated, ineffects []string
}

func (f *proxyFlags) add(fs *pflag.FlagSet) {
	fs.SortFlags = false
	fs.StringVar(&f.Domain, "domain", "", "DNS domain of the proxy (default: <POD_NAMESPACE>.svc.cluster.local)")
	fs.StringVar(&f.MeshConfig, "meshConfig", defaultMeshConfig, "mesh config file; it may be missing")
	fs.StringVar(&f.ProxyLogLevel, "proxyLogLevel", "warning,misc:error", "log level of Envoy, and component:level")
	fs.StringVar(&f.OutlierLogPath, "outlierLogPath", "", "file for Envoy's outlier detection events")
	fs.StringVar(&f.envoyRestart, "envoy-restart", "off", "how often to restart a crashed Envoy: N/duration, such as 3/10m; off ends the agent when Envoy crashes")
	fs.DurationVar(&f.MaxDrain, "max-drain", time.Hour, "longest drain with EXIT_ON_ZERO_ACTIVE_CONNECTIONS")
	fs.BoolVar(&f.AllowUnsafeEnvoy, "allow-unsafe-envoy", false, "run an Envoy with known bypasses of authorization policies")
	fs.BoolVar(&f.HotRestart, "hot-restart", false, "on SIGHUP, or when the Envoy binary changes, replace the running Envoy by a new one without failed requests")
	fs.BoolVar(&f.Profiling, "profiling", true, "pprof under /debug/pprof of the status port, for loopback peers")
	fs.IntVar(&f.stsPort, "stsPort", 0, "port of the token exchange; not served yet, only 0 is accepted")
	fs.StringVar(&f.TemplateFile, "templateFile", "", "bootstrap template; wins over proxyBootstrapTemplatePath, loses to ISTIO_BOOTSTRAP and customConfigFile")
	fs.StringVar(&f.tokenManagerPlugin, "tokenManagerPlugin", "GoogleTokenExchange", "accepted, without effect")
	fs.StringVar(&f.ServiceCluster, "serviceCluster", "istio-proxy", "deprecated: use serviceCluster of ProxyConfig")
	fs.IntVar(&f.Concurrency, "concurrency", 0, "deprecated: use concurrency of ProxyConfig")
	fs.StringVar(&f.ComponentLogLevel, "proxyComponentLogLevel", "", "deprecated: use component:level in --proxyLogLevel")
}

// check validates the flags, as far as their types do not, and parses --envoy-restart.
func (f *proxyFlags) check() (err error) {
	if f.stsPort != 0 {
		return fmt.Errorf("--stsPort is %d: the token exchange is not supported yet, remove the flag", f.stsPort)
	}
	if f.Restart, err = envoy.ParseRestart(f.envoyRestart); err != nil {
		return fmt.Errorf("--envoy-restart: %w", err)
	}
	if f.MaxDrain <= 0 {
		return fmt.Errorf("--max-drain is %s: it must be longer than 0", f.MaxDrain)
	}
	return nil
}

// note records the deprecated flags and those without effect that are set.
func (f *proxyFlags) note(fs *pflag.FlagSet) {
	for _, name := range []string{"serviceCluster", "concurrency", "proxyComponentLogLevel"} {
		if fs.Changed(name) {
			f.deprecated = append(f.deprecated, "--"+name)
		}
	}
	for _, name := range []string{"tokenManagerPlugin", "vklog"} {
		if fs.Changed(name) {
			f.ineffects = append(f.ineffects, "--"+name)
		}
	}
}

// tolerate removes unknown flags from the arguments of the program, so that a command
// line for another version still works. The argument after such a flag is taken as
// its value and removed, too, unless it is reserved. The arguments of the commands
// help and completion, which are about flags, are left alone.
func tolerate(root *cobra.Command, args []string) (kept, dropped []string) {
	command, words := root, 0
	for i := 0; i < len(args); i++ {
		arg := args[i]
		if arg == "--" {
			return append(kept, args[i:]...), dropped
		}
		if !isFlag(arg) {
			kept = append(kept, arg)
			if words++; command == root {
				if command, words = subcommand(root, arg), 0; command == nil {
					return append(kept, args[i+1:]...), dropped
				}
			}
			continue
		}
		flag, inline := lookup(command, arg)
		switch {
		case flag == nil:
			dropped = append(dropped, arg)
			if !inline && i+1 < len(args) && !strings.HasPrefix(args[i+1], "-") && !reserved(command, root, args[i+1:], words) {
				i++
			}
		case !inline && flag.NoOptDefVal == "" && i+1 < len(args):
			kept = append(kept, arg, args[i+1])
			i++
		default:
			kept = append(kept, arg)
		}
	}
	return kept, dropped
}

func isFlag(arg string) bool { return len(arg) > 1 && arg[0] == '-' }

// reserved reports whether the first argument after an unknown flag is probably not
// its value: it is a command, the role of proxy, or a required argument of request,
// of which words were given before.
func reserved(command, root *cobra.Command, behind []string, words int) bool {
	switch {
	case command == root:
		return subcommand(root, behind[0]) != nil
	case command.Name() == proxyName:
		return slices.Contains(node.Roles(), behind[0])
	case command.Name() == requestName:
		for _, arg := range behind[1:] {
			if !isFlag(arg) {
				words++
			}
		}
		return words < requestWords
	}
	return false
}

func subcommand(root *cobra.Command, name string) *cobra.Command {
	for _, c := range root.Commands() {
		if c.Name() == name {
			return c
		}
	}
	return nil
}

// lookup returns the flag that an argument names, or nil. inline reports whether the
// argument contains the value, too.
func lookup(command *cobra.Command, arg string) (flag *pflag.Flag, inline bool) {
	help := &pflag.Flag{Name: "help", NoOptDefVal: "true"}
	find := func(sets func(*pflag.FlagSet) *pflag.Flag) *pflag.Flag {
		if f := sets(command.Flags()); f != nil {
			return f
		}
		return sets(command.Root().PersistentFlags())
	}
	if name, long := strings.CutPrefix(arg, "--"); long {
		name, _, inline = strings.Cut(name, "=")
		if name == help.Name {
			return help, inline
		}
		return find(func(fs *pflag.FlagSet) *pflag.Flag { return fs.Lookup(name) }), inline
	}
	if arg[1:2] == "h" {
		return help, true
	}
	flag = find(func(fs *pflag.FlagSet) *pflag.Flag { return fs.ShorthandLookup(arg[1:2]) })
	return flag, len(arg) > 2
}
