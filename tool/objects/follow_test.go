// SPDX-License-Identifier: Apache-2.0
// Copyright The Outrigger Authors

package objects

import (
	"bytes"
	"context"
	"errors"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/spf13/cobra"
	networkingv1alpha3 "istio.io/api/networking/v1alpha3"

	"github.com/outrigger-mesh/outrigger/controlplane/config"
	"github.com/outrigger-mesh/outrigger/controlplane/config/memory"
	"github.com/outrigger-mesh/outrigger/controlplane/model"
)

// TestGetWatch checks that get --watch prints what changes in a store, and nothing else.
func TestGetWatch(t *testing.T) {
	t.Parallel()
	for form, want := range map[string][4]string{
		"table": {"", "NAME   ADDRESS    AGE\none    10.0.0.1   -\n", "one    10.0.0.2   -\ntwo    10.0.0.3   -\n", "workloadentry/one deleted\n"},
		"name":  {"", "workloadentry/one\n", "workloadentry/one\nworkloadentry/two\n", "workloadentry/one deleted\n"},
		"yaml":  {"items: []\n", "---\n", "address: 10.0.0.2\n", ""},
	} {
		synctest.Test(t, func(t *testing.T) {
			store := memory.New("memory://")
			root := &cobra.Command{Use: "outrigger", SilenceErrors: true, SilenceUsage: true}
			root.AddCommand(Commands(Config{
				Open:    func(string, []model.Kind) (config.Store, error) { return store, nil },
				Past:    past{}.of,
				Default: func() (string, error) { return "memory://", nil },
			})...)
			var out, errs bytes.Buffer
			root.SetOut(&out)
			root.SetErr(&errs)
			root.SetArgs([]string{"get", "we", "-w", "-o", form})
			ctx, cancel := context.WithCancel(t.Context())
			defer cancel()
			done := make(chan error, 1)
			go func() { done <- root.ExecuteContext(ctx) }()
			step := 0
			expect := func() {
				t.Helper()
				time.Sleep(2 * followed)
				synctest.Wait()
				if got := secondsOld.ReplaceAllString(out.String(), "   -\n"); got != want[step] && (form != "yaml" || !strings.Contains(got, want[step])) {
					t.Errorf("-o %s, step %d: got %q, want %q", form, step, got, want[step])
				}
				out.Reset()
				step++
			}
			entry := func(name, address string) *model.Config {
				return &model.Config{Key: model.Key{Kind: model.WorkloadEntry, Namespace: "default", Name: name}, Spec: &networkingv1alpha3.WorkloadEntry{Address: address}}
			}
			write := func(_ string, err error) {
				t.Helper()
				if err != nil {
					t.Fatal(err)
				}
			}
			expect()
			write(store.Create(ctx, entry("one", "10.0.0.1")))
			expect()
			write(store.Update(ctx, entry("one", "10.0.0.2")))
			write(store.Create(ctx, entry("two", "10.0.0.3")))
			expect()
			write("", store.Delete(ctx, entry("one", "").Key, ""))
			expect()
			cancel()
			if err := <-done; err != nil {
				t.Error(err)
			}
			if said := errs.String(); (form == "yaml") != strings.Contains(said, "one deleted") {
				t.Errorf("-o %s: the errors are %q", form, said)
			}
		})
	}
}

// TestTroubles checks that an error of a store that is followed is printed once.
func TestTroubles(t *testing.T) {
	t.Parallel()
	var errs bytes.Buffer
	cmd := &cobra.Command{}
	cmd.SetErr(&errs)
	say := troubles(cmd)
	for _, text := range []string{"refused", "refused", "reset"} {
		say(errors.New(text))
	}
	if got, want := errs.String(), "error: refused; trying again\nerror: reset; trying again\n"; got != want {
		t.Errorf("got %q, want %q", got, want)
	}
}
