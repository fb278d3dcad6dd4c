// SPDX-License-Identifier: Apache-2.0
// Copyright The Outrigger Authors

package inspect

import (
	"errors"
	"fmt"
	"io"
	"net"
	"slices"
	"strings"
	"time"

	"github.com/spf13/cobra"

	"github.com/outrigger-mesh/outrigger/internal/columns"
	"github.com/outrigger-mesh/outrigger/internal/output"
)

// Config configures how the commands find control planes.
type Config struct {
	// Default returns the addresses to use without --control, or an error that says what to do.
	Default func() ([]string, error)
	// Cluster forwards the ports of agents. Optional.
	Cluster *Cluster
	// Exit returns an error with an exit code. A nil err means that the error has been printed
	// already.
	Exit func(code int, err error) error
	// Dumb is true for a terminal that supports only plain lines.
	Dumb bool
	// Width is that of the terminal, in characters; 0 means that the output is none.
	Width int
}

// Exit codes.
const (
	exitFailed = 1
	exitUsage  = 2
)

// Output formats.
const (
	outTable = output.Table
	outWide  = output.Wide
	outYAML  = output.YAML
	outJSON  = output.JSON
)

// defaultNamespace is the namespace of the control plane in a cluster, as with istioctl.
const defaultNamespace = "istio-system"

// defaultTimeout is the timeout for the response of one control plane.
const defaultTimeout = 10 * time.Second

// Commands returns the commands of this package.
func Commands(cfg Config) []*cobra.Command {
	return []*cobra.Command{newStatusCommand(cfg), newExplainCommand(cfg), newPolicyCommand(cfg), newWhatIfCommand(cfg), newAnalyzeCommand(cfg), newHistoryCommand(cfg), newBugReportCommand(cfg), newTopCommand(cfg), newTapCommand(cfg), newProxyConfigCommand(cfg), newDashboardCommand(cfg)}
}

// askFlags are the flags common to all commands.
type askFlags struct {
	cfg       Config
	controls  []string
	namespace string // of the control plane
	timeout   time.Duration
	output    string
	all       bool
	memory    *memory // of a command that asks again and again; else nil
}

// add adds the flags to a command.
func (f *askFlags) add(cmd *cobra.Command) {
	f.addAsked(cmd)
	cmd.Flags().BoolVar(&f.all, "all", false, "show long lists to their end")
}

// addAsked adds the flags to a command without long lists, with more formats of the output than a table has.
func (f *askFlags) addAsked(cmd *cobra.Command, more ...string) {
	f.addControls(cmd)
	output.Add(cmd, &f.output, more...)
}

// addControls adds the flags that name control planes.
func (f *askFlags) addControls(cmd *cobra.Command) {
	f.addNamed(cmd)
	cmd.Flags().DurationVar(&f.timeout, "timeout", defaultTimeout, "timeout of a request to a control plane")
}

// addNamed is addControls without the timeout.
func (f *askFlags) addNamed(cmd *cobra.Command) {
	cmd.Flags().StringSliceVar(&f.controls, "control", nil, "control plane to query, as host:port of its /debug; several times for several replicas (default: OUTRIGGER_CONTROL; else the running outrigger up; else 127.0.0.1:15014; else the cluster of kubectl)")
	f.addNamespace(cmd)
}

// addNamespace adds the flag that says where the control plane of a cluster is.
func (f *askFlags) addNamespace(cmd *cobra.Command) {
	cmd.Flags().StringVarP(&f.namespace, "istioNamespace", "i", f.cfg.Cluster.controlNamespace(), "namespace of the control plane in the cluster of kubectl (environment: ISTIOCTL_ISTIONAMESPACE)")
}

// width returns the greatest width of tables, in characters: that of the terminal. Wide ones, and those
// for files and pipes, have no limit.
func (f *askFlags) width() int {
	if f.cfg.Width <= 0 || f.output == outWide {
		return columns.Unlimited
	}
	return max(f.cfg.Width, leastWidth)
}

// addresses returns the addresses of the control planes to query.
func (f *askFlags) addresses() ([]string, error) {
	list := f.controls
	if len(list) == 0 {
		if f.namespace != "" {
			f.cfg.Cluster.lookIn(f.namespace)
		}
		var err error
		if list, err = f.cfg.Default(); errors.Is(err, errCluster) {
			return nil, f.cfg.Exit(exitFailed, err)
		} else if err != nil {
			return nil, f.cfg.Exit(exitUsage, err)
		}
	}
	var out []string
	for _, address := range list {
		if address = strings.TrimSpace(address); address == "" || slices.Contains(out, address) {
			continue
		}
		if _, _, err := net.SplitHostPort(address); err != nil && !strings.Contains(address, "://") {
			return nil, f.cfg.Exit(exitUsage, fmt.Errorf("%q is not an address of a control plane: write host:port, as in --control 127.0.0.1:15014", address))
		}
		out = append(out, address)
	}
	if len(out) == 0 {
		return nil, f.cfg.Exit(exitUsage, fmt.Errorf("no control plane is named: write --control host:port"))
	}
	return out, nil
}

// write prints an answer as JSON or YAML.
func (f *askFlags) write(out io.Writer, answer any) error { return output.Write(out, f.output, answer) }

// cut returns the beginning of a list and the number of omitted entries.
func cut[T any](f *askFlags, list []T) (shown []T, left int) {
	const most = 20
	if f.all || len(list) <= most {
		return list, 0
	}
	return list[:most], len(list) - most
}

// age formats a duration as briefly as kubectl does.
func age(since, now time.Time) string {
	if since.IsZero() {
		return "-"
	}
	switch d := max(now.Sub(since), 0); {
	case d < 2*time.Minute:
		return fmt.Sprintf("%ds", int(d.Seconds()))
	case d < 2*time.Hour:
		return fmt.Sprintf("%dm", int(d.Minutes()))
	case d < 48*time.Hour:
		return fmt.Sprintf("%dh", int(d.Hours()))
	default:
		return fmt.Sprintf("%dd", int(d.Hours()/24))
	}
}

// count returns a number with its noun: "1 proxy" or "2 proxies".
func count(n int, one, many string) string {
	if n == 1 {
		return "1 " + one
	}
	return fmt.Sprintf("%d %s", n, many)
}
