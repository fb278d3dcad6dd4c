// SPDX-License-Identifier: Apache-2.0
// Copyright The Outrigger Authors

package main

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"os"
	"os/signal"
	"strings"
	"syscall"

	"github.com/spf13/cobra"
)

// version is set by the linker; see the Makefile.
var version = "dev"

func main() {
	os.Exit(run(os.Args[1:]))
}

// run executes the command line and gives the exit code: 255 after an error,
// as pilot-discovery does.
func run(args []string) int {
	ctx, stop := signal.NotifyContext(context.Background(), syscall.SIGINT, syscall.SIGTERM)
	defer stop()
	root := newRootCommand()
	root.SetArgs(args)
	if err := root.ExecuteContext(ctx); err != nil {
		fmt.Fprintln(os.Stderr, "outrigger-control:", err)
		return 255
	}
	return 0
}

func newRootCommand() *cobra.Command {
	root := &cobra.Command{
		Use:   "outrigger-control",
		Short: "The control plane of a service mesh with stock Envoy",
		Long: "outrigger-control reads the configuration of the mesh, serves it to the proxies and signs their\n" +
			"certificates. It takes the place of Istio's pilot-discovery: flags, environment, ports and wire are the same.",
		Example: "  outrigger-control discovery --configDir ./config --registries \"\"\n" +
			"  outrigger-control version",
		SilenceErrors: true,
		SilenceUsage:  true,
	}
	root.AddCommand(newDiscoveryCommand(), newVersionCommand())
	return root
}

func newVersionCommand() *cobra.Command {
	return &cobra.Command{
		Use:   "version",
		Short: "Print the version",
		Args:  cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			_, err := fmt.Fprintln(cmd.OutOrStdout(), version)
			return err
		},
	}
}

// flags are the command line of discovery.
type flags struct {
	configDir, meshConfig string
	domain                string
	registries            []string

	grpcAddr, secureGRPCAddr, httpAddr, monitoringAddr string

	stateDir  string
	logLevel  string
	logAsJSON bool
	profile   bool
}

func newDiscoveryCommand() *cobra.Command {
	var f flags
	cmd := &cobra.Command{
		Use:   "discovery",
		Short: "Serve the mesh",
		Args:  cobra.NoArgs,
		Example: "  # configuration from a directory of Istio YAML, watched\n" +
			"  outrigger-control discovery --configDir ./config --registries \"\"\n\n" +
			"  # TLS on one address, no plaintext port\n" +
			"  outrigger-control discovery --configDir ./config --grpcAddr \"\" --secureGRPCAddr 127.1.0.1:15012",
		RunE: func(cmd *cobra.Command, _ []string) error {
			env, err := readEnvironment()
			if err != nil {
				return err
			}
			tuneRuntime(env)
			log, err := f.logger()
			if err != nil {
				return err
			}
			srv, err := newServer(f, env, log)
			if err != nil {
				return err
			}
			return srv.run(cmd.Context())
		},
	}
	fs := cmd.Flags()
	fs.SortFlags = false
	fs.StringVar(&f.configDir, "configDir", "", "directory of Istio YAML, watched; used when the mesh config names no configSources")
	fs.StringVar(&f.meshConfig, "meshConfig", "./etc/istio/config/mesh", "mesh config file; it may be missing")
	fs.StringSliceVar(&f.registries, "registries", nil, "platforms to read services from, beside ServiceEntries: none is served yet")
	fs.StringVar(&f.domain, "domain", "cluster.local", "DNS domain of the mesh")
	fs.StringVar(&f.secureGRPCAddr, "secureGRPCAddr", ":15012", "address for ADS and certificate signing over TLS; empty turns it off")
	fs.StringVar(&f.grpcAddr, "grpcAddr", "127.0.0.1:15010", "address for ADS in plaintext, unauthenticated; empty turns it off")
	fs.StringVar(&f.httpAddr, "httpAddr", ":8080", "address for /ready")
	fs.StringVar(&f.monitoringAddr, "monitoringAddr", "127.0.0.1:15014", "address for /metrics and /version; empty puts them on httpAddr")
	fs.StringVar(&f.stateDir, "stateDir", "", "directory of the self-signed certificate authority; objects in their last good version are kept in last-good beside it (default: OUTRIGGER_STATE_DIR, else ./var/lib/outrigger/ca)")
	fs.BoolVar(&f.profile, "profile", false, "pprof under /debug/pprof on monitoringAddr, for loopback peers")
	fs.BoolVar(&f.logAsJSON, "log_as_json", false, "write the log as JSON")
	fs.StringVar(&f.logLevel, "log_output_level", "default:info", "lowest level of the log: debug, info, warn or error")
	return cmd
}

// state is the directory of the certificate authority. What else the control
// plane keeps stands beside it.
func (f *flags) state(env environment) string {
	if f.stateDir != "" {
		return f.stateDir
	}
	return env.stateDir
}

// logger makes the log that the flags ask for. Istio's form scope:level is
// read; there is one scope.
func (f *flags) logger() (*slog.Logger, error) {
	var level slog.Level
	for _, item := range strings.Split(f.logLevel, ",") {
		_, text, found := strings.Cut(item, ":")
		if !found {
			text = item
		}
		if text == "none" || text == "fatal" {
			level = slog.LevelError + 1
		} else if err := level.UnmarshalText([]byte(text)); err != nil {
			return nil, fmt.Errorf("--log_output_level %q: write debug, info, warn or error", f.logLevel)
		}
	}
	opts := &slog.HandlerOptions{Level: level}
	if f.logAsJSON {
		return slog.New(slog.NewJSONHandler(os.Stdout, opts)), nil
	}
	return slog.New(slog.NewTextHandler(os.Stdout, opts)), nil
}

// check refuses flags whose wish cannot be granted.
func (f *flags) check() error {
	for _, r := range f.registries {
		if r != "" {
			return fmt.Errorf("--registries names %q, which is not served: services come from ServiceEntry and WorkloadEntry objects; write --registries \"\"", r)
		}
	}
	if f.secureGRPCAddr == "" && f.grpcAddr == "" {
		return errors.New("--secureGRPCAddr and --grpcAddr are both empty: no proxy could connect")
	}
	if f.httpAddr == "" {
		return errors.New("--httpAddr is empty: /ready needs an address")
	}
	return nil
}
