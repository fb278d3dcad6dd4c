// SPDX-License-Identifier: Apache-2.0
// Copyright The Outrigger Authors

package main

import (
	"context"
	"errors"
	"io"
	"os"
	"os/signal"
	"runtime"
	"syscall"

	"github.com/spf13/cobra"

	"github.com/outrigger-mesh/outrigger/controlplane/analyze"
	"github.com/outrigger-mesh/outrigger/internal/collateral"
	"github.com/outrigger-mesh/outrigger/internal/columns"
	"github.com/outrigger-mesh/outrigger/mesh"
	"github.com/outrigger-mesh/outrigger/tool/inspect"
	"github.com/outrigger-mesh/outrigger/tool/install"
	"github.com/outrigger-mesh/outrigger/tool/machine"
	"github.com/outrigger-mesh/outrigger/tool/objects"
)

// version is set by the linker; see the Makefile.
var version = "dev"

func main() {
	// Other goroutines change the network namespaces of their threads, but not that of the process.
	runtime.LockOSThread()
	os.Exit(run(os.Args[1:], readEnvironment()))
}

// run executes the command line and returns the exit code.
func run(args []string, env environment) int {
	ctx, cancel := context.WithCancel(context.Background())
	defer cancel()
	kill := make(chan struct{})
	signals := make(chan os.Signal, 2)
	signal.Notify(signals, syscall.SIGINT, syscall.SIGTERM)
	if !signal.Ignored(syscall.SIGHUP) { // nohup ignores it
		signal.Notify(signals, syscall.SIGHUP) // the terminal was closed
	}
	// With a handler, writes to a closed pipe fail instead of ending the process.
	// The signal itself is ignored.
	signal.Notify(make(chan os.Signal, 1), syscall.SIGPIPE)
	go func() {
		<-signals
		cancel()
		<-signals
		close(kill)
	}()
	cluster := inspect.NewCluster(ctx, env.istioNamespace)
	defer cluster.Close()
	root := newRootCommand(env, kill, cluster)
	out := &objects.Output{File: os.Stdout, End: cancel}
	err := objects.Execute(ctx, root, args, out)
	if err == nil {
		err = out.Failed()
	}
	exit := &objects.ExitError{Code: 1, Err: err}
	switch {
	case err == nil:
		return 0
	case errors.As(err, &exit) && exit.Err == nil: // the command has printed it
	case out.Closed(err):
	default:
		root.PrintErrln("outrigger:", err)
	}
	return exit.Code
}

func newRootCommand(env environment, kill <-chan struct{}, cluster *inspect.Cluster) *cobra.Command {
	root := &cobra.Command{
		Use:   "outrigger",
		Short: "A service mesh with stock Envoy, on one machine or many",
		Long: "outrigger is the command line tool: it runs a mesh on this machine, and reads and\n" +
			"writes the configuration of any mesh.\n" +
			"Its counterparts outrigger-agent and outrigger-control run a mesh in production.\n\n" +
			"The exit code is 0; 1 if a command fails or finds what is wrong; 2 for a wrong command line.",
		Example: "  outrigger up -f examples/shop/mesh.yaml\n  outrigger validate -f config/\n" +
			"  outrigger apply -f route.yaml\n  outrigger get virtualservices -A\n" +
			"  outrigger status\n  outrigger explain vs/catalog",
		Version:       version,
		SilenceErrors: true,
		SilenceUsage:  true,
	}
	stores := objects.Stores{Named: env.store, Kubeconfig: env.kubeconfig, Home: env.home, InPod: env.inPod}
	if !stores.HasCluster() {
		cluster = nil
	}
	questions := inspect.Config{
		Default: func() ([]string, error) { return inspect.Controls(env.control, cluster) }, Cluster: cluster, Exit: func(code int, err error) error { return &objects.ExitError{Code: code, Err: err} }, Dumb: env.dumb, Width: columns.OfTerminal(os.Stdout),
	}
	observe := func(w mesh.Watched) mesh.Observer { return inspect.Observer(questions, w) }
	root.AddCommand(newUpCommand(env, kill, observe), newInjectCommand(), machine.NewJoinCommand(), machine.NewLeaveCommand(), machine.NewBackupCommand(version), inspect.NewVersion(questions, version), collateral.New())
	root.AddCommand(objects.Commands(objects.Config{
		Open: stores.Open, Default: stores.Default, Past: func(cmd *cobra.Command) objects.Past { return inspect.PastOf(questions, cmd) }, Envoy: env.envoy, In: os.Stdin, Terminal: objects.IsTerminal(os.Stdin), Width: columns.OfTerminal(os.Stdout),
		OpenTerminal: func() (io.ReadWriteCloser, error) { return objects.OpenTerminal(os.Stdout) },
		Analyze: func(ctx context.Context, store string, given bool, change analyze.Change) (analyze.Result, error) {
			if given {
				return inspect.AnalyzeChange(ctx, "", nil, store, change)
			}
			return inspect.AnalyzeChange(ctx, env.control, cluster, store, change)
		},
	})...)
	root.AddCommand(install.Commands(install.Config{Cluster: stores.Cluster, Version: imageTag()})...)
	root.AddCommand(inspect.Commands(questions)...)
	root.SetFlagErrorFunc(objects.WrongFlag)
	return root
}

// imageTag returns the tag of the images of this version that make images builds, or "" if there is none.
func imageTag() string {
	if version == "dev" {
		return ""
	}
	return version
}
