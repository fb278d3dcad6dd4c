// SPDX-License-Identifier: Apache-2.0
// Copyright The Outrigger Authors

package inspect

import (
	"errors"
	"fmt"
	"io"
	"maps"
	"net"
	"net/http"
	"net/url"
	"slices"
	"strings"
	"time"

	"github.com/spf13/cobra"

	"github.com/outrigger-mesh/outrigger/internal/output"
)

// levels returns the levels that loggers of Envoy have, or those of an agent.
func levels(agent bool) []string {
	if agent {
		return []string{"debug", "info", "warn", "error", "none"}
	}
	return []string{"trace", "debug", "info", "warning", "error", "critical", "off"}
}

// logFlags are the flags of proxy log.
type logFlags struct {
	adminFlags
	level        string
	reset, agent bool
	path         string // where the levels are
}

func newLogCommand(cfg Config) *cobra.Command {
	f := logFlags{adminFlags: adminFlags{proxyConfigFlags{askFlags: askFlags{cfg: cfg}}}}
	cmd := &cobra.Command{
		Use:   "log PROXY",
		Short: "Print or change the log levels of an Envoy or its agent",
		Long: `Print the log levels of an Envoy, or change them until it ends: one level for all
loggers, or levels of single loggers. With --agent they are those of the agent, and
PROXY may be HOST:PORT of its status port.
` + reachLong + `

--reset sets the levels that an agent starts Envoy with by default, warning, and error
of the logger misc; those of an agent are the ones of its flags.`,
		Example: "  outrigger proxy log frontend --level rbac=debug,http=info\n  outrigger proxy log frontend --agent --level xdsproxy=debug\n" +
			"  outrigger proxy log 127.0.0.1:15020 --agent\n  outrigger proxy log --admin 127.0.0.1:15000 --reset",
		RunE: func(cmd *cobra.Command, args []string) error { return f.run(cmd, args) },
	}
	cmd.Flags().BoolVar(&f.agent, "agent", false, "the levels of the agent instead: "+strings.Join(levels(true), ", "))
	cmd.Flags().StringVar(&f.level, "level", "", "level of all loggers, or LOGGER=LEVEL; several with commas between. Levels: "+strings.Join(levels(false), ", "))
	cmd.Flags().BoolVar(&f.reset, "reset", false, "set the levels that an agent starts Envoy with by default, or those of the agent's flags")
	f.addAdmin(cmd, false)
	output.Add(cmd, &f.output, "short")
	completeList(cmd, "level", f.completeLevel)
	return cmd
}

func (f *logFlags) run(cmd *cobra.Command, args []string) error {
	if err := f.asked(args); err != nil {
		return err
	}
	switch {
	case f.reset && f.level != "":
		return f.cfg.Exit(exitUsage, errors.New("--level and --reset exclude each other"))
	case f.agent && f.admin != "":
		return f.cfg.Exit(exitUsage, errors.New("--admin is that of an Envoy: with --agent write PROXY, or HOST:PORT of the status port of an agent"))
	}
	changes, err := f.changes()
	if err != nil {
		return f.cfg.Exit(exitUsage, err)
	}
	done, err := f.connect(cmd, strings.Join(args, ""))
	if err != nil {
		return err
	}
	defer done()
	has, err := f.loggers(cmd, nil)
	for _, change := range changes {
		for name := range change {
			if err == nil && name != "level" && name != "reset" && has[name] == "" {
				err = fmt.Errorf("%s has no logger %q: outrigger proxy log lists them", f.admin, name)
			}
		}
	}
	for _, change := range changes {
		if err == nil {
			_, err = f.loggers(cmd, change)
		}
	}
	if err == nil && len(changes) > 0 {
		has, err = f.loggers(cmd, nil) // the answer of Envoy to a change may have no levels
	}
	if err != nil {
		return f.fail(err)
	}
	return f.printLevels(cmd.OutOrStdout(), has)
}

// connect sets the address to ask, and returns a function that ends the way to it.
func (f *logFlags) connect(cmd *cobra.Command, name string) (done func(), err error) {
	if !f.agent {
		f.path = "/logging"
		return f.envoy(cmd, name)
	}
	f.path = "/debug/logging"
	if _, _, err := net.SplitHostPort(name); err == nil {
		f.admin = name
		return func() {}, nil
	}
	return f.connectTo(cmd, name, agentPort)
}

// changes returns the queries that change levels, in their order. Envoy changes one level at a time.
func (f *logFlags) changes() (list []url.Values, err error) {
	text := f.level
	if f.reset {
		if f.agent {
			return []url.Values{{"reset": {"true"}}}, nil
		}
		text = "warning,misc=error"
	}
	all, loggers, err := levelsOf(text, levels(f.agent))
	if all != "" {
		list = append(list, url.Values{"level": {all}})
	}
	for _, name := range slices.Sorted(maps.Keys(loggers)) {
		list = append(list, url.Values{name: {loggers[name]}})
	}
	return list, err
}

// levelsOf reads the value of --level, with some of levels: the level of all loggers, or "", and those of
// single ones.
func levelsOf(text string, levels []string) (all string, loggers map[string]string, err error) {
	loggers = map[string]string{}
	for one := range strings.SplitSeq(text, ",") {
		if one = strings.TrimSpace(one); one == "" {
			continue
		}
		level := one
		i := strings.IndexAny(one, "=:") // istioctl writes a colon
		if i >= 0 {
			level = one[i+1:]
		}
		if level = strings.ToLower(level); !slices.Contains(levels, level) {
			return "", nil, fmt.Errorf("--level %s: the level %q is unknown: write one of %s", text, level, strings.Join(levels, ", "))
		}
		if i >= 0 {
			loggers[one[:i]] = level
		} else {
			all = level
		}
	}
	return all, loggers, nil
}

// loggers changes levels, if query is not empty, and returns those in the answer.
func (f *logFlags) loggers(cmd *cobra.Command, query url.Values) (map[string]string, error) {
	answer, err := askAdmin(cmd.Context(), f.admin, http.MethodPost, f.path, query.Encode(), f.timeout)
	if err != nil {
		return nil, err
	}
	found := map[string]string{}
	for line := range strings.Lines(string(answer)) {
		if name, level, ok := strings.Cut(strings.TrimSpace(line), ": "); ok {
			found[name] = level
		}
	}
	if len(found) == 0 {
		return nil, fmt.Errorf("the answer of %s has no loggers: %s", f.admin, oneLine(string(answer[:min(len(answer), maxErrText)])))
	}
	return found, nil
}

// printLevels prints the levels of loggers.
func (f *logFlags) printLevels(out io.Writer, has map[string]string) error {
	if !f.forReaders() {
		return f.write(out, has)
	}
	rows := [][]string{{"LOGGER", "LEVEL"}}
	for _, name := range slices.Sorted(maps.Keys(has)) {
		rows = append(rows, []string{name, has[name]})
	}
	_, err := view{out: out, now: time.Now(), flags: &f.askFlags}.columns(rows, "LOGGER")
	return err
}
