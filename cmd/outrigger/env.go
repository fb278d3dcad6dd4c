// SPDX-License-Identifier: Apache-2.0
// Copyright The Outrigger Authors

package main

import "os"

// environment is what the tool reads from its environment, once.
type environment struct {
	// envoy is ENVOY: the Envoy to run.
	envoy string
	// store is OUTRIGGER_STORE: the config store of the commands that use one.
	store string
	// control is OUTRIGGER_CONTROL: the control planes that are asked.
	control string
	// kubeconfig is KUBECONFIG, home is HOME, inPod tells whether
	// KUBERNETES_SERVICE_HOST is set: where the cluster of the user is.
	kubeconfig, home string
	inPod            bool
	// noColor is true when NO_COLOR is set to anything.
	noColor bool
	// dumb is true when TERM is "dumb": a terminal that only takes lines.
	dumb bool
	// all is handed on to the applications of a mesh.
	all []string
}

func readEnvironment() environment {
	return environment{
		envoy:      os.Getenv("ENVOY"),
		store:      os.Getenv("OUTRIGGER_STORE"),
		control:    os.Getenv("OUTRIGGER_CONTROL"),
		kubeconfig: os.Getenv("KUBECONFIG"),
		home:       os.Getenv("HOME"),
		inPod:      os.Getenv("KUBERNETES_SERVICE_HOST") != "",
		noColor:    os.Getenv("NO_COLOR") != "",
		dumb:       os.Getenv("TERM") == "dumb",
		all:        os.Environ(),
	}
}
