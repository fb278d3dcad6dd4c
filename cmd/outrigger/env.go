// SPDX-License-Identifier: Apache-2.0
// Copyright The Outrigger Authors

package main

import (
	"os"
	"strconv"
)

// environment are the environment variables that the tool uses.
type environment struct {
	// envoy is ENVOY: the Envoy to run.
	envoy string
	// allowUnsafeEnvoy is OUTRIGGER_ALLOW_UNSAFE_ENVOY: the default of --allow-unsafe-envoy.
	allowUnsafeEnvoy bool
	// store is OUTRIGGER_STORE: the config store of the commands that use one.
	store string
	// control is OUTRIGGER_CONTROL: the control planes to ask.
	control string
	// istioNamespace is ISTIOCTL_ISTIONAMESPACE: the namespace of the control plane in a cluster.
	istioNamespace string
	// kubeconfig is KUBECONFIG, home is HOME, inPod is true if
	// KUBERNETES_SERVICE_HOST is set: they locate the user's cluster.
	kubeconfig, home string
	inPod            bool
	// noColor is true if NO_COLOR is not empty.
	noColor bool
	// dumb is true if TERM is "dumb": a terminal without control sequences.
	dumb bool
	// all is the whole environment, for the applications of a mesh.
	all []string
}

func readEnvironment() environment {
	allowUnsafe, _ := strconv.ParseBool(os.Getenv("OUTRIGGER_ALLOW_UNSAFE_ENVOY")) // an invalid value allows nothing
	return environment{
		envoy:            os.Getenv("ENVOY"),
		allowUnsafeEnvoy: allowUnsafe,
		store:            os.Getenv("OUTRIGGER_STORE"),
		control:          os.Getenv("OUTRIGGER_CONTROL"),
		istioNamespace:   os.Getenv("ISTIOCTL_ISTIONAMESPACE"),
		kubeconfig:       os.Getenv("KUBECONFIG"),
		home:             os.Getenv("HOME"),
		inPod:            os.Getenv("KUBERNETES_SERVICE_HOST") != "",
		noColor:          os.Getenv("NO_COLOR") != "",
		dumb:             os.Getenv("TERM") == "dumb",
		all:              os.Environ(),
	}
}
