// SPDX-License-Identifier: Apache-2.0
// Copyright The Outrigger Authors

package inspect

import (
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"maps"
	"net/http"
	"net/url"
	"slices"
	"strings"
	"time"

	adminv3 "github.com/envoyproxy/go-control-plane/envoy/admin/v3"
	tlsv3 "github.com/envoyproxy/go-control-plane/envoy/extensions/transport_sockets/tls/v3"
	"github.com/spf13/cobra"
	"google.golang.org/protobuf/encoding/protojson"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/reflect/protoregistry"
	"google.golang.org/protobuf/types/known/anypb"

	"github.com/outrigger-mesh/outrigger/certs"
)

// adminFlags are the flags of commands that only an Envoy can answer.
type adminFlags struct {
	proxyConfigFlags
}

// addAdmin adds the flags. readsFile is true for a command that also reads a saved answer.
func (f *adminFlags) addAdmin(cmd *cobra.Command, readsFile bool, outputs ...string) {
	cmd.Flags().StringVar(&f.admin, "admin", "", "admin port of the Envoy, as host:port")
	if readsFile {
		cmd.Flags().StringVarP(&f.file, "filename", "f", "", "file with the answer of /config_dump of Envoy's admin port, or - for standard input, to read instead")
	}
	f.addAsked(cmd, outputs...)
}

// dump returns the messages of one type in a dump.
func (f *adminFlags) dump(cmd *cobra.Command, name string, into proto.Message) error {
	if (f.admin == "") == (f.file == "") {
		return f.cfg.Exit(exitUsage, errors.New("write --admin HOST:PORT of an Envoy, or -f FILE with its config_dump"))
	}
	if err := f.known(); err != nil {
		return f.cfg.Exit(exitUsage, err)
	}
	var raw []byte
	var err error
	if f.file != "" {
		raw, _, err = f.readFile(cmd.InOrStdin())
	} else {
		raw, err = askAdmin(cmd.Context(), f.admin, http.MethodGet, "/config_dump", "", f.timeout)
	}
	if err != nil {
		return f.fail(err)
	}
	var dump struct {
		Configs []json.RawMessage `json:"configs"`
	}
	if err := json.Unmarshal(raw, &dump); err != nil {
		return f.fail(fmt.Errorf("it is not a config_dump in JSON: %w", err))
	}
	for _, text := range dump.Configs {
		var typed struct {
			URL string `json:"@type"`
		}
		if json.Unmarshal(text, &typed) != nil || string((&anypb.Any{TypeUrl: typed.URL}).MessageName()) != "envoy.admin.v3."+name {
			continue
		}
		types := &resolver{Types: protoregistry.GlobalTypes}
		err := protojson.UnmarshalOptions{AllowPartial: true, DiscardUnknown: true, RecursionLimit: maxNesting, Resolver: types}.Unmarshal(text, into)
		if err != nil {
			return f.fail(fmt.Errorf("read the part %s: %w", typed.URL, err))
		}
		return nil
	}
	return f.fail(fmt.Errorf("the config_dump has no %s: write one of an Envoy, not of the control plane", name))
}

func newSecretsCommand(cfg Config) *cobra.Command {
	f := adminFlags{proxyConfigFlags{askFlags: askFlags{cfg: cfg}}}
	cmd := &cobra.Command{
		Use:     "secrets --admin HOST:PORT",
		Aliases: []string{"secret", "s"},
		Short:   "Print the certificates and roots of an Envoy",
		Long: `Print the certificates and roots that an Envoy has, and until when they are valid.
Private keys are not printed.

STATUS is ACTIVE, WARMING for a secret that Envoy waits for, EXPIRED, or EARLY for
a certificate that is not valid yet. The exit code is 0, or 1 if one is not ACTIVE.`,
		Example: "  outrigger proxy secrets --admin 127.0.0.1:15000\n  outrigger proxy secrets --admin 127.1.0.2:15000 -o wide\n" +
			"  curl -s 127.0.0.1:15000/config_dump | outrigger proxy secrets -f -",
		Args: cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			d := &adminv3.SecretsConfigDump{}
			if err := f.dump(cmd, "SecretsConfigDump", d); err != nil {
				return err
			}
			list := secretsOf(d, time.Now())
			var err error
			if f.output == outTable || f.output == outWide {
				err = view{out: cmd.OutOrStdout(), now: time.Now(), flags: &f.askFlags}.secrets(list)
			} else {
				err = f.writeVisible(cmd.OutOrStdout(), list)
			}
			if err == nil && slices.ContainsFunc(list, func(s secret) bool { return s.Status != "ACTIVE" }) {
				err = f.cfg.Exit(exitFailed, nil)
			}
			return err
		},
	}
	f.addAdmin(cmd, true, outTable, outWide, outYAML, outJSON)
	return cmd
}

// secret is a certificate of a secret, without its key.
type secret struct {
	Name      string    `json:"name"`
	Type      string    `json:"type"` // "Cert Chain" or "CA"
	Status    string    `json:"status"`
	Identity  string    `json:"identity,omitempty"`
	Serial    string    `json:"serial_number,omitempty"`
	NotBefore time.Time `json:"not_before,omitzero"`
	NotAfter  time.Time `json:"not_after,omitzero"`
}

// secretsOf returns a secret for each chain and each root.
func secretsOf(d *adminv3.SecretsConfigDump, now time.Time) []secret {
	out := []secret{}
	add := func(name string, packed *anypb.Any, status string) {
		message := &tlsv3.Secret{}
		if packed.UnmarshalTo(message) != nil {
			message.Name = name
		}
		source, kind := message.GetTlsCertificate().GetCertificateChain(), "Cert Chain"
		if message.GetTlsCertificate() == nil {
			source, kind = message.GetValidationContext().GetTrustedCa(), "CA"
		}
		text := slices.Concat(source.GetInlineBytes(), []byte(source.GetInlineString())) // one of them is set
		list, _ := certs.ParseChain(text)                                                // what cannot be read has no certificate
		if kind == "Cert Chain" && len(list) > 1 {
			list = list[:1]
		}
		for _, c := range list {
			one := secret{Name: name, Type: kind, Status: status, Serial: fmt.Sprintf("%x", c.SerialNumber), NotBefore: c.NotBefore.UTC(), NotAfter: c.NotAfter.UTC()}
			if len(c.URIs) > 0 {
				one.Identity = c.URIs[0].String()
			}
			switch {
			case status != "ACTIVE":
			case now.After(c.NotAfter):
				one.Status = "EXPIRED"
			case now.Before(c.NotBefore):
				one.Status = "EARLY"
			}
			out = append(out, one)
		}
		if len(list) == 0 {
			out = append(out, secret{Name: name, Type: kind, Status: status})
		}
	}
	for _, s := range d.GetStaticSecrets() {
		add(s.GetName(), s.GetSecret(), "ACTIVE")
	}
	for _, s := range d.GetDynamicActiveSecrets() {
		add(s.GetName(), s.GetSecret(), "ACTIVE")
	}
	for _, s := range d.GetDynamicWarmingSecrets() {
		add(s.GetName(), s.GetSecret(), "WARMING")
	}
	slices.SortStableFunc(out, func(a, b secret) int { return strings.Compare(a.Name, b.Name) })
	return out
}

// secrets prints secrets as a table.
func (v view) secrets(list []secret) error {
	rows := [][]string{{"RESOURCE NAME", "TYPE", "STATUS", "SERIAL NUMBER", "NOT AFTER"}}
	wide := v.flags.output == outWide
	if wide {
		rows[0] = append(rows[0], "NOT BEFORE", "IDENTITY")
	}
	at := func(t time.Time) string {
		if t.IsZero() {
			return ""
		}
		return t.Format(time.RFC3339)
	}
	for _, s := range list {
		row := []string{s.Name, s.Type, s.Status, s.Serial, at(s.NotAfter)}
		if wide {
			row = append(row, at(s.NotBefore), s.Identity)
		}
		rows = append(rows, row)
	}
	if len(list) == 0 {
		v.say("The Envoy has no secrets.\n")
		return nil
	}
	_, err := v.columns(rows, "SERIAL NUMBER")
	return err
}

func newBootstrapCommand(cfg Config) *cobra.Command {
	f := adminFlags{proxyConfigFlags{askFlags: askFlags{cfg: cfg}}}
	cmd := &cobra.Command{
		Use:     "bootstrap --admin HOST:PORT",
		Aliases: []string{"b"},
		Short:   "Print the bootstrap of an Envoy",
		Long:    "Print the bootstrap of an Envoy. Secrets in it are replaced by " + redactedText + ".",
		Example: "  outrigger proxy bootstrap --admin 127.0.0.1:15000\n  curl -s 127.0.0.1:15000/config_dump | outrigger proxy bootstrap -f - -o json",
		Args:    cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			d := &adminv3.BootstrapConfigDump{}
			if err := f.dump(cmd, "BootstrapConfigDump", d); err != nil {
				return err
			}
			redact(d.ProtoReflect(), false)
			raw, err := protojson.MarshalOptions{AllowPartial: true, Resolver: &resolver{Types: protoregistry.GlobalTypes}}.Marshal(d.GetBootstrap())
			if err != nil {
				return f.fail(fmt.Errorf("write the bootstrap: %w", err))
			}
			return f.writeVisible(cmd.OutOrStdout(), json.RawMessage(raw))
		},
	}
	f.addAdmin(cmd, true, outYAML, outJSON)
	return cmd
}

// levels are those that Envoy has.
var levels = []string{"trace", "debug", "info", "warning", "error", "critical", "off"}

func newLogCommand(cfg Config) *cobra.Command {
	f := adminFlags{proxyConfigFlags{askFlags: askFlags{cfg: cfg}}}
	level, reset := "", false
	cmd := &cobra.Command{
		Use:   "log --admin HOST:PORT",
		Short: "Print or change the log levels of an Envoy",
		Long: `Print the log levels of an Envoy, or change them until it ends: one level for all
loggers, or levels of single loggers. --reset sets those that an agent starts Envoy
with by default: warning, and error of the logger misc.`,
		Example: "  outrigger proxy log --admin 127.0.0.1:15000\n  outrigger proxy log --admin 127.0.0.1:15000 --level debug\n" +
			"  outrigger proxy log --admin 127.0.0.1:15000 --level rbac=debug,http=info\n  outrigger proxy log --admin 127.0.0.1:15000 --reset",
		Args: cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			if f.admin == "" {
				return f.cfg.Exit(exitUsage, errors.New("write --admin HOST:PORT of an Envoy"))
			}
			if reset && level != "" {
				return f.cfg.Exit(exitUsage, errors.New("--level and --reset exclude each other"))
			}
			if err := f.known(); err != nil {
				return f.cfg.Exit(exitUsage, err)
			}
			if reset {
				level = "warning,misc=error"
			}
			all, loggers, err := levelsOf(level)
			if err != nil {
				return f.cfg.Exit(exitUsage, err)
			}
			has, err := f.loggers(cmd, "")
			for name := range loggers {
				if err == nil && has[name] == "" {
					err = fmt.Errorf("the Envoy at %s has no logger %q: outrigger proxy log lists them", f.admin, name)
				}
			}
			if err == nil && all != "" {
				_, err = f.loggers(cmd, "level="+all)
			}
			for _, name := range slices.Sorted(maps.Keys(loggers)) {
				if err == nil {
					_, err = f.loggers(cmd, url.Values{name: {loggers[name]}}.Encode())
				}
			}
			if err == nil && level != "" {
				has, err = f.loggers(cmd, "") // the answer to a change may have no levels
			}
			if err != nil {
				return f.fail(err)
			}
			return f.printLevels(cmd.OutOrStdout(), has)
		},
	}
	cmd.Flags().StringVar(&level, "level", "", "level of all loggers, or LOGGER=LEVEL; several with commas between. Levels: "+strings.Join(levels, ", "))
	cmd.Flags().BoolVar(&reset, "reset", false, "set the levels that an agent starts Envoy with by default")
	f.addAdmin(cmd, false, outTable, outYAML, outJSON)
	return cmd
}

// levelsOf reads the value of --level: the level of all loggers, or "", and those of single ones.
func levelsOf(text string) (all string, loggers map[string]string, err error) {
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

// loggers changes levels, if query is not empty, and returns those in the answer of Envoy.
func (f *adminFlags) loggers(cmd *cobra.Command, query string) (map[string]string, error) {
	answer, err := askAdmin(cmd.Context(), f.admin, http.MethodPost, "/logging", query, f.timeout)
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
func (f *adminFlags) printLevels(out io.Writer, has map[string]string) error {
	if f.output != outTable {
		return f.writeVisible(out, has)
	}
	rows := [][]string{{"LOGGER", "LEVEL"}}
	for _, name := range slices.Sorted(maps.Keys(has)) {
		rows = append(rows, []string{name, has[name]})
	}
	_, err := view{out: out, now: time.Now(), flags: &f.askFlags}.columns(rows, "LOGGER")
	return err
}
