// SPDX-License-Identifier: Apache-2.0
// Copyright The Outrigger Authors

package inspect

import (
	"crypto/sha256"
	"encoding/json"
	"errors"
	"fmt"
	"net/http"
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
	"github.com/outrigger-mesh/outrigger/internal/output"
	"github.com/outrigger-mesh/outrigger/internal/redact"
)

// adminFlags are the flags of commands that only an Envoy can answer.
type adminFlags struct {
	proxyConfigFlags
}

// addAdmin adds the flags. readsFile is true for a command that also reads a saved answer.
func (f *adminFlags) addAdmin(cmd *cobra.Command, readsFile bool) {
	cmd.Flags().StringVar(&f.admin, "admin", "", "admin port of an Envoy to ask instead, as host:port")
	cmd.Flags().StringVarP(&f.namespace, "namespace", "n", "", "namespace of a proxy that is named without one")
	if readsFile {
		cmd.Flags().StringVarP(&f.file, "file", "f", "", "file with the answer of /config_dump of Envoy's admin port, or - for standard input, to read instead")
	}
	f.addControls(cmd)
	f.complete(cmd, completeProxy(&f.askFlags))
}

// asked checks that one of PROXY, --admin and -f says whom to ask.
func (f *adminFlags) asked(args []string) error {
	named := 0
	for _, given := range []bool{len(args) > 0, f.admin != "", f.file != ""} {
		if given {
			named++
		}
	}
	if len(args) > 1 || named != 1 {
		return f.cfg.Exit(exitUsage, errors.New("write PROXY, as in frontend.shop, or --admin HOST:PORT of an Envoy, or -f FILE with its config_dump, where the command has it"))
	}
	return nil
}

// envoy sets the address of the admin port of a proxy, if there is no other, and returns a function that
// ends the way to it.
func (f *proxyConfigFlags) envoy(cmd *cobra.Command, name string) (done func(), err error) {
	if f.admin != "" {
		return func() {}, nil
	}
	return f.connectTo(cmd, name, adminPort)
}

// connectTo sets the address to ask to that of a local port of a proxy.
func (f *proxyConfigFlags) connectTo(cmd *cobra.Command, name, port string) (done func(), err error) {
	p, err := f.one(cmd, f.named(name))
	if err != nil {
		return nil, err
	}
	if f.admin, done, err = p.reach(cmd.Context(), port, f.timeout); err != nil {
		return nil, f.fail(err)
	}
	return done, nil
}

// dump returns the messages of one type in a dump.
func (f *adminFlags) dump(cmd *cobra.Command, args []string, name string, into proto.Message) error {
	if err := f.asked(args); err != nil {
		return err
	}
	if f.file == "" {
		done, err := f.envoy(cmd, strings.Join(args, ""))
		if err != nil {
			return err
		}
		defer done()
	}
	var raw []byte
	var err error
	if f.file != "" {
		raw, _, err = f.readFile(cmd.InOrStdin())
	} else {
		raw, err = askAdmin(cmd.Context(), f.admin, http.MethodGet, "/config_dump", "", f.timeout)
	}
	if err != nil {
		return f.unread(err)
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
		Use:     "secrets PROXY",
		Aliases: []string{"secret", "s"},
		Short:   "Print the certificates and roots of an Envoy",
		Long: `Print the certificates and roots that an Envoy has, and until when they are valid.
Private keys are not printed.
` + reachLong + `

STATUS is ACTIVE, WARMING for a secret that Envoy waits for, EXPIRED, or EARLY for
a certificate that is not valid yet. The exit code is 0, or 1 if one is not ACTIVE.`,
		Example: "  outrigger proxy secrets frontend\n  outrigger proxy secrets --admin 127.1.0.2:15000 -o wide\n" +
			"  curl -s 127.0.0.1:15000/config_dump | outrigger proxy secrets -f -",
		RunE: func(cmd *cobra.Command, args []string) error {
			d := &adminv3.SecretsConfigDump{}
			if err := f.dump(cmd, args, "SecretsConfigDump", d); err != nil {
				return err
			}
			list := secretsOf(d, time.Now())
			var err error
			if f.forReaders() {
				err = view{out: cmd.OutOrStdout(), now: time.Now(), flags: &f.askFlags}.secrets(list)
			} else {
				err = f.write(cmd.OutOrStdout(), list)
			}
			if err == nil && slices.ContainsFunc(list, func(s secret) bool { return s.Status != "ACTIVE" }) {
				err = f.cfg.Exit(exitFailed, nil)
			}
			return err
		},
	}
	f.addAdmin(cmd, true)
	output.Add(cmd, &f.output, "short")
	return cmd
}

// secret is a certificate of a secret, without its key.
type secret struct {
	Name      string    `json:"name"`
	Type      string    `json:"type"` // "Cert Chain" or "CA"
	Status    string    `json:"status"`
	Identity  string    `json:"identity,omitempty"`
	Issuer    string    `json:"issuer,omitempty"`
	Serial    string    `json:"serial_number,omitempty"`
	NotBefore time.Time `json:"not_before,omitzero"`
	NotAfter  time.Time `json:"not_after,omitzero"`
	// Fingerprint is the SHA-256 of the certificate.
	Fingerprint string `json:"sha256,omitempty"`
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
			one := secret{Name: name, Type: kind, Status: status, Issuer: c.Issuer.String(), Serial: fmt.Sprintf("%x", c.SerialNumber.Bytes()), NotBefore: c.NotBefore.UTC(), NotAfter: c.NotAfter.UTC(), Fingerprint: fmt.Sprintf("%x", sha256.Sum256(c.Raw))}
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
		Use:     "bootstrap PROXY",
		Aliases: []string{"b"},
		Short:   "Print the bootstrap of an Envoy",
		Long:    "Print the bootstrap of an Envoy. Secrets in it are replaced by " + redact.Mark + ".\n" + reachLong,
		Example: "  outrigger proxy bootstrap frontend\n  curl -s 127.0.0.1:15000/config_dump | outrigger proxy bootstrap -f - -o json",
		RunE: func(cmd *cobra.Command, args []string) error {
			d := &adminv3.BootstrapConfigDump{}
			if err := f.dump(cmd, args, "BootstrapConfigDump", d); err != nil {
				return err
			}
			raw, err := protojson.MarshalOptions{AllowPartial: true, Resolver: &resolver{Types: protoregistry.GlobalTypes}}.Marshal(d.GetBootstrap())
			if err != nil {
				return f.fail(fmt.Errorf("write the bootstrap: %w", err))
			}
			return f.write(cmd.OutOrStdout(), json.RawMessage(withoutSecrets(raw)))
		},
	}
	f.addAdmin(cmd, true)
	output.AddOnly(cmd, &f.output, outYAML, outJSON)
	return cmd
}

// reachLong says how a proxy is asked.
const reachLong = `A proxy of this machine is asked directly, one of a pod through kubectl port-forward.`
