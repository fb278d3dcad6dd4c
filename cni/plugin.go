// SPDX-License-Identifier: Apache-2.0
// Copyright The Outrigger Authors

package cni

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"net/http"
	"slices"
	"time"

	"github.com/containernetworking/cni/pkg/skel"
	"github.com/containernetworking/cni/pkg/types"
	current "github.com/containernetworking/cni/pkg/types/100"
	"github.com/containernetworking/cni/pkg/version"
	"github.com/spf13/pflag"

	"github.com/outrigger-mesh/outrigger/envoy/capture"
)

// PluginName is the name of the plugin: the type in network configurations, and of its program.
const PluginName = "outrigger-cni"

// pluginTimeout bounds one command of the runtime, which waits for it and has limits of its own.
// Within it, the plugin asks again after an error.
const (
	pluginTimeout  = 10 * time.Second
	requestTimeout = 5 * time.Second
	askAgain       = 250 * time.Millisecond
)

// networkConfig is the configuration of the plugin, which the installer writes.
type networkConfig struct {
	types.NetConf
	Kubernetes struct {
		Kubeconfig string `json:"kubeconfig"`
	} `json:"kubernetes"`
	ExcludeNamespaces []string `json:"exclude_namespaces"`
}

// podArguments are what Kubernetes adds to a command, in CNI_ARGS. The names of the fields count.
type podArguments struct {
	types.CommonArgs
	K8S_POD_NAME, K8S_POD_NAMESPACE, K8S_POD_UID types.UnmarshallableString //nolint:revive // as above
}

// Plugin runs one command of the container runtime, which is in the environment and in the standard
// input of the process. It returns an error of the CNI specification.
func Plugin(ctx context.Context, programVersion string) *types.Error {
	ctx, cancel := context.WithTimeout(ctx, pluginTimeout)
	defer cancel()
	nothing := func(*skel.CmdArgs) error { return nil }
	return skel.PluginMainFuncsWithError(skel.CNIFuncs{
		Add:   func(args *skel.CmdArgs) error { return add(ctx, args) },
		Check: func(args *skel.CmdArgs) error { return check(ctx, args) },
		// The rules end with the network namespace. An error would keep the network of other pods.
		Del: nothing, GC: nothing, Status: nothing,
	}, version.All, PluginName+" "+programVersion)
}

// add sets the rules of a pod in scope, and passes on the result of the plugins before.
func add(ctx context.Context, args *skel.CmdArgs) error {
	config, err := parseNetworkConfig(args.StdinData)
	if err != nil {
		return err
	}
	p, err := config.pod(ctx, args)
	if err != nil {
		return notStarted(err)
	}
	if p != nil {
		if err := p.capture(ctx, args.Netns, slog.New(slog.DiscardHandler)); err != nil {
			return notStarted(err)
		}
	}
	if config.PrevResult == nil { // not chained
		return types.PrintResult(&current.Result{CNIVersion: current.ImplementedSpecVersion}, config.CNIVersion)
	}
	return types.PrintResult(config.PrevResult, config.CNIVersion)
}

// notStarted returns the error that makes the kubelet try again.
func notStarted(err error) error {
	return types.NewError(types.ErrTryAgainLater, "the pod is not started, because its connections might bypass its proxy: "+err.Error(), "")
}

// check returns an error if a pod in scope has no rules.
func check(ctx context.Context, args *skel.CmdArgs) error {
	config, err := parseNetworkConfig(args.StdinData)
	if err != nil {
		return err
	}
	p, err := config.pod(ctx, args)
	if err != nil || p == nil {
		return err
	}
	captured, err := capture.Captured(args.Netns)
	if err == nil && !captured {
		err = fmt.Errorf("pod %s/%s: the rules are gone: delete the pod, so that a new one starts with rules", p.Metadata.Namespace, p.Metadata.Name)
	}
	return err
}

func parseNetworkConfig(stdin []byte) (*networkConfig, error) {
	c := &networkConfig{}
	if err := json.Unmarshal(stdin, c); err != nil {
		return nil, types.NewError(types.ErrDecodingFailure, "the network configuration of "+PluginName+": "+err.Error(), "")
	}
	if err := version.ParsePrevResult(&c.NetConf); err != nil {
		return nil, types.NewError(types.ErrDecodingFailure, "the result of the plugins before "+PluginName+": "+err.Error(), "")
	}
	return c, nil
}

// pod returns the pod that a command is about, or nil if it gets no rules.
func (c *networkConfig) pod(ctx context.Context, args *skel.CmdArgs) (*pod, error) {
	var of podArguments
	// Runtimes may add arguments that are unknown here.
	of.IgnoreUnknown = true
	if err := types.LoadArgs(args.Args, &of); err != nil {
		return nil, fmt.Errorf("CNI_ARGS %q: %w", args.Args, err)
	}
	name, namespace, uid := string(of.K8S_POD_NAME), string(of.K8S_POD_NAMESPACE), string(of.K8S_POD_UID)
	if name == "" || namespace == "" || slices.Contains(c.ExcludeNamespaces, namespace) {
		return nil, nil
	}
	p, err := c.ask(ctx, namespace, name)
	if err != nil {
		return nil, err
	}
	if uid != "" && uid != p.Metadata.UID && uid != p.Metadata.Annotations[nameConfigHash] {
		return nil, fmt.Errorf("pod %s/%s was replaced by another one", namespace, name)
	}
	if p.outside() != "" {
		return nil, nil
	}
	return p, nil
}

// ask gets a pod from the API server. It reads the kubeconfig each time: the installer renews it.
func (c *networkConfig) ask(ctx context.Context, namespace, name string) (*pod, error) {
	for {
		p, err := getPod(ctx, c.Kubernetes.Kubeconfig, namespace, name)
		if err == nil {
			return p, nil
		}
		if hasCode(err, http.StatusNotFound) {
			return nil, err
		}
		select {
		case <-ctx.Done():
			return nil, fmt.Errorf("asking for pod %s/%s for %s: %w; is %s running on this node?", namespace, name, pluginTimeout, err, PluginName)
		case <-time.After(askAgain):
		}
	}
}

func getPod(ctx context.Context, kubeconfig, namespace, name string) (*pod, error) {
	api, err := fromKubeconfig(kubeconfig)
	if err != nil {
		return nil, err
	}
	defer api.close()
	ctx, cancel := context.WithTimeout(ctx, requestTimeout)
	defer cancel()
	p := &pod{}
	return p, api.do(ctx, request{path: podPath(namespace, name), out: p})
}

// capture sets the rules of the pod in its network namespace.
func (p *pod) capture(ctx context.Context, networkNamespace string, log *slog.Logger) error {
	fail := func(err error) error {
		return fmt.Errorf("pod %s/%s: %w", p.Metadata.Namespace, p.Metadata.Name, err)
	}
	if networkNamespace == "" {
		return fail(errors.New("the runtime names no network namespace"))
	}
	args, environ, err := p.arguments()
	if err != nil {
		return fail(err)
	}
	var flags capture.Flags
	set := pflag.NewFlagSet(PluginName, pflag.ContinueOnError)
	flags.Add(set)
	if err := set.Parse(append(args, "--network-namespace", networkNamespace)); err != nil {
		return fail(err)
	}
	if err := flags.Run(ctx, log, environ, io.Discard); err != nil {
		return fail(fmt.Errorf("redirecting connections: %w", err))
	}
	return nil
}
