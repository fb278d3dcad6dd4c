// SPDX-License-Identifier: Apache-2.0
// Copyright The Outrigger Authors

package main

import (
	"fmt"
	"os"
	"strings"

	"github.com/spf13/pflag"
)

// isPlugin reports whether a container runtime has started the program.
func isPlugin() bool { return os.Getenv("CNI_COMMAND") != "" }

// fromEnvironment sets the flags that were not given: --cni-net-dir by CNI_NET_DIR, and so on. An
// empty variable means the default.
func fromEnvironment(flags *pflag.FlagSet) (err error) {
	flags.VisitAll(func(flag *pflag.Flag) {
		name := variable(flag)
		if value := os.Getenv(name); value != "" && !flag.Changed && err == nil && name != "" {
			if setErr := flag.Value.Set(value); setErr != nil {
				err = fmt.Errorf("the environment variable %s is %q: it must be a %s, as for --%s", name, value, flag.Value.Type(), flag.Name)
			}
		}
	})
	return err
}

// variable returns the name of the environment variable of a flag. Those of the log have none.
func variable(flag *pflag.Flag) string {
	if flag.Name == "help" || strings.Contains(flag.Name, "_") {
		return ""
	}
	return strings.ToUpper(strings.ReplaceAll(flag.Name, "-", "_"))
}

// server returns the URL of the API server, which Kubernetes names in each container.
func server() string {
	host, port := os.Getenv("KUBERNETES_SERVICE_HOST"), os.Getenv("KUBERNETES_SERVICE_PORT")
	if strings.Contains(host, ":") {
		host = "[" + host + "]"
	}
	return "https://" + host + ":" + port
}
