// SPDX-License-Identifier: Apache-2.0
// Copyright The Outrigger Authors

package objects

import (
	"fmt"
	"os"
	"path/filepath"

	"github.com/spf13/cobra"
	meshv1alpha1 "istio.io/api/mesh/v1alpha1"

	"github.com/outrigger-mesh/outrigger/bootstrap/meshconfig"
	"github.com/outrigger-mesh/outrigger/controlplane/analyze"
	"github.com/outrigger-mesh/outrigger/controlplane/model"
	"github.com/outrigger-mesh/outrigger/mesh"
	"github.com/outrigger-mesh/outrigger/tool/deep"
)

// deepFlags are the flags of validate --deep.
type deepFlags struct {
	cfg               Config
	enabled           bool
	envoy, meshConfig string
}

func (f *deepFlags) add(cmd *cobra.Command) {
	cmd.Flags().BoolVar(&f.enabled, "deep", false, "let an Envoy validate what the proxies would have")
	cmd.Flags().StringVar(&f.envoy, "envoy", "", "program of the Envoy for --deep (default: ENVOY; else envoy beside this program; else envoy in PATH)")
	cmd.Flags().StringVar(&f.meshConfig, "meshConfigFile", "", "mesh config for --deep (default: that of Istio)")
}

// check returns what an Envoy says about the proxies of files.
func (f *deepFlags) check(cmd *cobra.Command, files fileFlags, objects []*model.Config) (result deep.Result, err error) {
	self, err := os.Executable()
	if err != nil {
		return result, err
	}
	binary, err := mesh.LookEnvoy(f.envoy, f.cfg.Envoy, filepath.Dir(self))
	if err != nil {
		return result, &ExitError{exitUsage, err}
	}
	settings, err := f.settings()
	if err != nil {
		return result, &ExitError{exitUsage, err}
	}
	in := analyze.Input{Objects: objects, Manifests: analyze.ReadManifests(files.kept, files.namespace)}
	in.Build(settings)
	return deep.Check(cmd.Context(), binary, in)
}

// sayDeep prints what an Envoy says.
func sayDeep(cmd *cobra.Command, result deep.Result, strict bool) error {
	sayProblems(cmd.ErrOrStderr(), result.Problems)
	refused := 0
	for _, r := range result.Refused {
		refused += r.Alike
		_, _ = fmt.Fprintf(cmd.ErrOrStderr(), "error: Envoy refuses the configuration of %s, such as %s: %s\n", proxies(r.Alike), r.Proxy, r.Reason) // the terminal may be closed
	}
	summary := fmt.Sprintf("Envoy accepts the configuration of %d of %s", result.Proxies-refused, proxies(result.Proxies))
	if result.Left > 0 {
		summary += fmt.Sprintf("; %d more were not validated", result.Left)
	}
	if refused > 0 || strict && len(result.Problems) > 0 {
		return &ExitError{exitFailed, fmt.Errorf("%s", summary)}
	}
	say(cmd, "%s\n", summary)
	return nil
}

func proxies(n int) string {
	if n == 1 {
		return "1 proxy"
	}
	return fmt.Sprintf("%d proxies", n)
}

// settings returns the mesh config; nil for the default one.
func (f *deepFlags) settings() (*meshv1alpha1.MeshConfig, error) {
	if f.meshConfig == "" {
		return nil, nil
	}
	text, err := os.ReadFile(f.meshConfig)
	if err != nil {
		return nil, err
	}
	settings, err := meshconfig.Parse(text)
	if err != nil {
		return nil, fmt.Errorf("%s: %w", f.meshConfig, err)
	}
	return settings, nil
}
