// SPDX-License-Identifier: Apache-2.0
// Copyright The Outrigger Authors

package template

import (
	"bytes"
	"maps"
	"slices"
	"strings"
	"testing"
	texttemplate "text/template"

	"github.com/Masterminds/sprig/v3"
)

func parameters() map[string]any {
	return map[string]any{
		"name": "shop", "zone": "", "port": 15000, "on": true, "float": 2.5, "list": []string{"b", "a", "b"},
		"text": "one two\nthree", "dict": map[string]any{"a": 1, "b": map[string]any{"c": "d"}}, "json": `{"x":[1,"<2>"]}`,
		"struct": &struct{ Name string }{"n"},
	}
}

// TestSprig checks that every function has the same result as in Sprig.
func TestSprig(t *testing.T) {
	t.Parallel()
	used := map[string]bool{}
	for _, source := range []string{
		`{{ default "d" .zone }} {{ default "d" .name }} {{ default 1 0 }} {{ default "d" }}`,
		`{{ empty .zone }} {{ empty .list }} {{ empty .struct }} {{ empty nil }} {{ empty 0.0 }} {{ empty dict }}`,
		`{{ coalesce .zone .none .name }} {{ coalesce "" 0 }} {{ all 1 .zone }} {{ any 1 .zone }} {{ ternary "y" "n" .on }} {{ .on | ternary 1 2 }}`,
		`{{ quote .name 1 nil .list "a\"b\n" }} {{ squote .name 1 nil }} {{ cat "a" 1 nil .list }} {{ toString .port }} {{ toString .list }} {{ toStrings (list 1 "b" nil true) }}`,
		`{{ trim "  a " }}|{{ trimAll "$" "$5$" }}|{{ trimall "$" "$5$" }}|{{ trimPrefix "a" "ab" }}|{{ trimSuffix "b" "ab" }}|{{ nospace " a b\tc" }}`,
		`{{ upper .name }} {{ lower "ABC" }} {{ contains "ho" .name }} {{ hasPrefix "s" .name }} {{ hasSuffix "s" .name }} {{ repeat 3 "ab" }}`,
		`{{ trunc 2 .name }} {{ trunc -2 .name }} {{ trunc 9 .name }} {{ substr 0 2 .name }} {{ substr -1 2 .name }} {{ substr 1 -1 .name }} {{ plural "one" "many" 2 }} {{ plural "one" "many" 1 }}`,
		`{{ indent 2 .text }}|{{ nindent 2 .text }}|{{ indent 0 "" }}|{{ replace "o" "00" .text }}|{{ replace "" "-" "abc" }}`,
		`{{ join "-" .list }} {{ join "," (list 1 nil "a") }} {{ join "," "one" }} {{ join "," nil }} {{ splitList "-" "a-b-" }} {{ (split "$" "a$b")._1 }} {{ (splitn "$" 2 "a$b$c")._1 }}`,
		`{{ b64enc .name }} {{ b64dec "c2hvcA==" }} {{ b64dec "?" }} {{ base "/a/b.c" }} {{ dir "/a/b" }} {{ clean "/a/../b" }} {{ ext "a.b" }} {{ isAbs "/a" }}`,
		`{{ atoi "12" }} {{ atoi "x" }} {{ int "0x10" }} {{ int64 "5.0" }} {{ int64 "5.1" }} {{ int 2.9 }} {{ int nil }} {{ int true }} {{ float64 "1.5" }} {{ float64 3 }} {{ float64 "x" }}`,
		`{{ add 1 "2" 3.9 }} {{ add }} {{ add1 .port }} {{ sub 5 7 }} {{ mul 2 3 4 }} {{ div 7 2 }} {{ mod 7 4 }} {{ max 1 9 3 }} {{ min 4 2 8 }} {{ biggest 1 2 }} {{ ceil 1.1 }} {{ floor 1.9 }} {{ round 123.5555 3 }} {{ round 1.24 1 0.3 }}`,
		`{{ until 4 }} {{ until -3 }} {{ until 0 }} {{ untilStep 3 9 2 }} {{ untilStep 9 3 -4 }} {{ untilStep 3 9 -1 }} {{ seq }} {{ seq 5 }} {{ seq -2 }} {{ seq 2 4 }} {{ seq 4 2 }} {{ seq 0 3 9 }} {{ seq 9 -3 1 }} {{ seq 9 3 1 }}`,
		`{{ list 1 "a" }} {{ tuple 1 }} {{ append .list "c" }} {{ push .list 1 }} {{ mustAppend .list 1 }} {{ mustPush .list 1 }} {{ prepend .list "c" }} {{ mustPrepend .list 1 }} {{ concat .list (list 1) }}`,
		`{{ first .list }} {{ mustFirst .list }} {{ last .list }} {{ mustLast .list }} {{ rest .list }} {{ mustRest .list }} {{ initial .list }} {{ mustInitial .list }} {{ first list }} {{ rest list }}`,
		`{{ reverse .list }} {{ mustReverse .list }} {{ compact (list 1 "" 0 "a") }} {{ mustCompact .list }} {{ uniq .list }} {{ mustUniq .list }} {{ without .list "b" }} {{ mustWithout .list "a" }} {{ has "a" .list }} {{ mustHas 1 .list }} {{ has 1 nil }}`,
		`{{ slice .list 1 2 }} {{ mustSlice .list 1 }} {{ slice list 1 }} {{ sortAlpha .list }} {{ sortAlpha (list 3 1 2) }} {{ sortAlpha "x" }}`,
		`{{ dict "a" 1 "b" }} {{ get .dict "a" }}|{{ get .dict "none" }}|{{ set (dict "a" 1) "a" 2 }} {{ unset (dict "a" 1 "b" 2) "a" }} {{ hasKey .dict "a" }} {{ keys (dict "k" 1) }} {{ values (dict "k" 1) }}`,
		`{{ pluck "a" .dict (dict "a" 2) (dict "b" 1) }} {{ pick .dict "a" "none" }} {{ omit .dict "b" }} {{ dig "b" "c" "x" .dict }} {{ dig "b" "none" "x" .dict }} {{ dig "none" "c" "x" .dict }}`,
		`{{ toJson .dict }} {{ mustToJson "<a>" }} {{ toRawJson "<a>" }} {{ mustToRawJson .list }} {{ toPrettyJson .dict }} {{ mustToPrettyJson 1 }} {{ toJson nil }} {{ fromJson .json }} {{ (mustFromJson .json).x }} {{ fromJson "{" }}`,
		`{{ typeOf .list }} {{ typeIs "string" .name }} {{ typeIsLike "string" .name }} {{ kindOf .dict }} {{ kindOf nil }} {{ kindIs "map" .dict }} {{ deepEqual .list (list "b") }} {{ deepEqual .dict .dict }}`,
		`{{ regexMatch "^s.*p$" .name }} {{ mustRegexMatch "x" .name }} {{ regexFind "h." .name }} {{ mustRegexFind "h." .name }} {{ regexFindAll "[ho]" .name -1 }} {{ mustRegexFindAll "[ho]" .name 1 }} {{ regexQuoteMeta "a.b" }}`,
		`{{ regexReplaceAll "a(x*)b" "-ab-axxb-" "${1}W" }} {{ mustRegexReplaceAll "a(x*)b" "-ab-axxb-" "$1W" }} {{ regexReplaceAll "" "abc" "-" }} {{ regexReplaceAllLiteral "a(x*)b" "-ab-axxb-" "${1}" }} {{ mustRegexReplaceAllLiteral "b*" "abbc" "-" }} {{ regexReplaceAll "b*" "abbc" "$0-" }}`,
		`{{ regexSplit "z+" "pizza" -1 }} {{ mustRegexSplit "z" "pizza" 2 }}`,
		// The template language itself.
		`{{ range $i, $e := .list }}{{ if $i }},{{ end }}{{ $e }}{{ else }}none{{ end }}{{ range 3 }}{{ . }}{{ end }}{{ with .zone }}x{{ else }}y{{ end }}`,
		`{{ range .list }}{{ if eq . "a" }}{{ break }}{{ end }}{{ continue }}{{ end }}{{ define "t" }}[{{ . }}]{{ end }}{{ template "t" .name }}{{ block "u" 1 }}{{ . }}{{ end }}`,
		`{{ .missing }}|{{ .dict.missing }}|{{ print .list 1 2 }}|{{ println "a" }}|{{ printf "%q %5.2f|%-4d|%%" .name .float .port }}|{{ html "<" }}{{ js "'" }}{{ urlquery "a b" }}|{{ len .list }}{{ index .list 1 }}`,
		`{{ $x := 1 }}{{ $x = add $x 1 }}{{ $x }}{{ and 1 0 }}{{ or 0 "z" }}{{ not 1 }}{{ .struct.Name }}{{- /* c */ -}} `,
	} {
		got, err := Render("x", []byte(source), parameters())
		if err != nil {
			t.Errorf("%s: %v", source, err)
			continue
		}
		var want bytes.Buffer
		if err := texttemplate.Must(texttemplate.New("").Funcs(sprig.GenericFuncMap()).Parse(source)).Execute(&want, parameters()); err != nil {
			t.Errorf("%s: %v", source, err)
			continue
		}
		if string(got) != want.String() {
			t.Errorf("%s\n got %s\nwant %s", source, got, want.String())
		}
		for name := range (&budget{}).functions() {
			if strings.Contains(source, " "+name+" ") || strings.Contains(source, "("+name+" ") {
				used[name] = true
			}
		}
	}
	ours := (&budget{}).functions()
	own := []string{"toJSON", "required", "fail"}
	for _, name := range slices.Sorted(maps.Keys(ours)) {
		if _, theirs := sprig.GenericFuncMap()[name]; !used[name] && theirs && !slices.Contains(own, name) {
			t.Errorf("%s is not compared with Sprig", name)
		}
	}
	for _, name := range []string{"env", "expandenv", "now", "getHostByName", "randAlpha", "uuidv4", "genCA"} {
		if _, ok := ours[name]; ok {
			t.Errorf("%s is available although it is not pure", name)
		}
	}
}

func TestRender(t *testing.T) {
	t.Parallel()
	for source, want := range map[string]string{
		`{{ toJSON .dict }}`:                                                   `{"a":1,"b":{"c":"d"}}`,
		`{{ toJSON .none }}{{ toJSON nil }}`:                                   `{}{}`,
		`{{ required "no" .name }}`:                                            "shop",
		`{{ keys (dict "b" 1 "a" 2) }}`:                                        "[a b]",
		`{{ values (dict "b" 1 "a" 2) }}`:                                      "[2 1]",
		`{{ define "x" }}<{{ .b.c }}>{{ end }}{{ include "x" .dict | upper }}`: "<D>",
	} {
		if got, err := Render("x", []byte(source), parameters()); err != nil || string(got) != want {
			t.Errorf("Render(%s) = %q, %v", source, got, err)
		}
	}
}

// TestRenderErrors checks that errors contain the file, the line, the value and the cure.
func TestRenderErrors(t *testing.T) {
	t.Parallel()
	for source, want := range map[string]string{
		"{\n{{ if }}":                     "template /t.json line 2: missing value for if",
		"{{ if .a }}":                     "template /t.json line 1: unexpected EOF",
		"{\n\n{{ env \"HOME\" }}":         `template /t.json line 3: function "env" not defined: templates do not read the environment`,
		"{{ genCA }}":                     `function "genCA" not defined: docs/compatibility.md lists the functions`,
		"\n{{ .struct.GetName }}":         "template /t.json line 2 at <.struct.GetName>: can't evaluate field GetName in type interface {}: templates do not call methods; write the field .Name",
		"{{ .struct.AsDuration }}":        "can't evaluate field AsDuration in type interface {}: it is not a field, and templates do not call methods",
		"{{ fail \"my words\" }}":         "line 1 at <fail \"my words\">: error calling fail: my words",
		"{{ required \"give x\" .none }}": "give x",
		"{{ define \"x\" }}\n{{ .a.b }}{{ end }}{{ template \"x\" .struct }}": "template /t.json line 2 at <.a.b>: can't evaluate field a",
		"{{ define \"x\" }}\n{{ .a.b }}{{ end }}{{ include \"x\" .struct }}":  "template /t.json line 2 at <.a.b>: can't evaluate field a",
		"{{ mustFromJson \"{\" }}":             "unexpected end of JSON input",
		"{{ div 1 0 }}{{ mod 1 0 }}":           "division by zero",
		"{{ mod 1 0 }}":                        "division by zero",
		"{{ repeat -1 \"a\" }}":                "must not be negative",
		"{{ indent -1 \"a\" }}":                "must not be negative",
		"{{ substr 3 1 \"abcd\" }}":            "slice bounds out of range",
		"{{ slice .list 2 9 }}":                "slice from 2 to 9 of a list of 3",
		"{{ first 1 }}":                        "first requires a list, not int",
		"{{ append 1 1 }}":                     "append requires a list, not int",
		"{{ dig \"a\" \"b\" 1 .dict }}":        "dig looks up b in a int",
		"{{ dig 1 }}":                          "dig requires",
		"{{ set nil \"a\" 1 }}":                "set",
		"{{ regexMatch \"(\" \"\" }}":          "error parsing regexp",
		"{{ printf \"%*d\" 5 1 }}":             "a width of * is not supported",
		strings.Repeat("x", maxSource+1):       "at most 1048576",
		"{{ template \"none\" }}":              `template "none" not defined`,
		"{{ _step 1 }}":                        `function "_step" not defined`,
		"{{ define \"x\" }}{{ end }}{{ nil }}": "nil is not a command",
		"{{ .name.x }}":                        "can't evaluate field x in type interface {}",
		"{{ call .name }}":                     "error calling call: non-function .name of type string",
		"{{ index .list 9 }}":                  "index out of range",
	} {
		_, err := Render("/t.json", []byte(source), parameters())
		if err == nil || !strings.Contains(err.Error(), want) || strings.Contains(err.Error(), engineName) {
			t.Errorf("Render(%.80s) = %v, want an error with %q", source, err, want)
		}
	}
}

// TestRenderBounds checks that templates that would exhaust memory or never end result in an error.
func TestRenderBounds(t *testing.T) {
	t.Parallel()
	const big = `{{ $b := repeat 1000000 "x" }}`
	for name, tc := range map[string]struct{ source, want string }{
		"range without an end": {`{{ range 1000000000000 }}{{ end }}`, "actions were executed"},
		"ranges in ranges":     {`{{ range until 5000 }}{{ range until 5000 }}{{ end }}{{ end }}`, "line 1: more than 262144 actions"},
		"output":               {big + `{{ range until 100 }}{{ $b }}{{ end }}`, "the output has more than 16777216 bytes"},
		"calls itself":         {`{{ define "x" }}{{ template "x" }}{{ end }}{{ template "x" }}`, "100 levels deep"},
		"includes itself":      {`{{ define "x" }}{{ include "x" . }}{{ end }}{{ include "x" . }}`, "100 levels deep"},
		"calls itself twice":   {`{{ define "x" }}{{ if lt . 60 }}{{ template "x" (add1 .) }}{{ template "x" (add1 .) }}{{ end }}{{ end }}{{ template "x" 1 }}`, "actions were executed"},
		"repeat":               {`{{ repeat 9999999999 "xx" }}`, "is requested; at most"},
		"until":                {`{{ until 999999999999 }}`, "a list of 999999999999 numbers"},
		"until below":          {`{{ until -9223372036854775808 }}`, "numbers is requested"},
		"steps":                {`{{ untilStep -9000000000000000000 9000000000000000000 1 }}`, "numbers is requested"},
		"seq":                  {`{{ seq 1 999999999 }}`, "numbers is requested"},
		"indent":               {`{{ indent 999999999 "x" }}`, "is requested"},
		"replace":              {big + `{{ replace "x" $b $b }}`, "is requested"},
		"join":                 {big + `{{ join $b (until 100000) }}`, "is requested"},
		"regex":                {big + `{{ regexReplaceAll "x" $b $b }}`, "is requested"},
		"regex expanded":       {`{{ $b := repeat 100000 "x" }}{{ regexReplaceAll "x*" $b (repeat 100 "$0") }}`, "is requested"},
		"regex groups":         {big + `{{ regexFindAll "(x)(x)(x)(x)(x)" $b -1 }}`, "make more than"},
		"regex program":        {`{{ regexMatch (repeat 2000 "x") "x" }}`, "the regular expression has 2000 bytes"},
		"doubling":             {`{{ $b := "x" }}{{ range until 100 }}{{ $b = print $b $b }}{{ end }}`, "a text has"},
		"doubling a list":      {`{{ $b := list 1 }}{{ range until 90 }}{{ $b = list $b $b }}{{ end }}{{ toJson $b }}`, "make more than"},
		"printing a tree":      {`{{ $b := list 1 }}{{ range until 90 }}{{ $b = list $b $b }}{{ end }}{{ $b }}`, "make more than"},
		"a dict in itself":     {`{{ $d := dict }}{{ $_ := set $d "d" $d }}{{ $d }}`, "levels deep"},
		"a dict twice":         {`{{ $d := dict }}{{ $_ := set $d "a" $d }}{{ $_ = set $d "b" $d }}{{ toJson $d }}`, "levels deep"},
		"equal in itself":      {`{{ $d := dict }}{{ $_ := set $d "d" $d }}{{ deepEqual $d $d }}`, "levels deep"},
		"keeping":              {big + `{{ $l := list }}{{ range until 9999 }}{{ $l = append $l (upper $b) }}{{ end }}`, "make more than"},
		"printf":               {`{{ printf "%99999999d" 1 }}`, "is too large"},
		"printf often":         {`{{ printf (repeat 10000 "%9999d") 1 }}`, "is requested"},
		"uniq":                 {`{{ uniq (until 200000) }}`, "actions were executed"},
		"html":                 {big + `{{ html (list $b $b $b $b $b $b) }}`, "are allowed"},
		"deep in the source":   {strings.Repeat("{{if 1}}", 50000) + strings.Repeat("{{end}}", 50000), ""},
		"parentheses":          {"{{ " + strings.Repeat("(", 300000) + "1" + strings.Repeat(")", 300000) + " }}", "line 1"},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			_, err := Render("/t.json", []byte(tc.source), parameters())
			switch {
			case tc.want == "" && err != nil:
				t.Error(err)
			case tc.want != "" && (err == nil || !strings.Contains(err.Error(), tc.want) || len(err.Error()) > 700):
				t.Errorf("got error %v, want one with %q", err, tc.want)
			}
		})
	}
}

// FuzzRender checks that any template terminates within the limits.
func FuzzRender(f *testing.F) {
	for _, source := range []string{
		`{"id": "{{ .name }}"{{ if .zone }}, "zone": {{ toJSON .zone }}{{ end }}}`,
		`{{ range $i, $e := .list }}{{ indent $i $e }}{{ end }}{{ define "a" }}{{ template "a" . }}{{ end }}`,
		`{{ $d := dict "a" (list 1 2) }}{{ set $d "b" (until 5) | toJson | replace "1" "22" | quote }}`,
		`{{ repeat 99999 "x" | printf "%9d %s" 1 }}{{ regexReplaceAll "a(b)" .text "$1" }}{{ slice .list 1 }}{{ range 5 }}{{ break }}{{ end }}`,
		`{{ uniq (concat .list (seq 1 9 | splitList " ")) | join "," }}{{ dig "b" "c" 1 .dict }}{{ fromJson .json }}{{ .struct.Name }}`,
	} {
		f.Add(source)
	}
	f.Fuzz(func(t *testing.T, source string) {
		got, err := Render("/t.json", []byte(source), parameters())
		if len(got) > maxOutput || err != nil && len(err.Error()) > 2000 {
			t.Errorf("got %d bytes of output, error %v", len(got), err)
		}
	})
}
