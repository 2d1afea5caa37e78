package archtest

import (
	"go/ast"
	"go/parser"
	"go/token"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"
	"unicode"
)

// personal are words for what people do, say, and feel. Code requests, responds, reports, notifies, records, expects.
var personal = regexp.MustCompile(`^(ask(s|ed|er|ers|ing)?|tells?|told|telling|says?|said|saying|hears?|heard|` +
	`wish(es|ed)?|wants|doomed|strangers?|calm|greet(s|ed|ing)?|blame[sd]?|remember(s|ed)?|knew|guess(es|ed)?|guest|` +
	`deaf|blind|stubborn|friends?|notice[sd]?|ow(e|es|ed)|talks?|promises?|believes?|doubts?|hopes?|innocent|guilty|` +
	`culprit|liar|lies?|sick|spoke|speaks?|polite|rude|hungry|impatient|shy|gossip|born|ghost|learn(s|ed)?)$`)

// personalNames are the names with such words that stay, by the folder in which they are declared.
var personalNames = map[string]map[string]string{
	"internal/core/routing": {"guess": "a prediction of which blocks a server caches"},
	"internal/inference":    {"greeting": "the first message of ZMTP, by the name that its specification uses"},
}

// Where a word ends in camel case: after an abbreviation (HTTPGuest), and after a small letter (storedGuest).
var (
	afterAbbreviation = regexp.MustCompile(`([A-Z])([A-Z][a-z])`)
	afterSmallLetter  = regexp.MustCompile(`([a-z])([A-Z])`)
)

// Names are those of the field: a reader who has not met the authors understands a request and a response at once.
func TestNamesAreOfTheField(t *testing.T) {
	used := map[string]bool{}
	files := 0
	for _, name := range tracked(t, "*.go") {
		fset := token.NewFileSet()
		f, err := parser.ParseFile(fset, filepath.Join(top, name), nil,
			parser.SkipObjectResolution|parser.ParseComments)
		if f == nil || err != nil || ast.IsGenerated(f) {
			continue // removed and not committed yet, made by a tool, or a test's data
		}
		files++
		folder := filepath.ToSlash(filepath.Dir(name))
		for _, id := range declared(f) {
			word := personalWord(id.Name)
			if word == "" {
				continue
			}
			if kept := keptWord(folder, word); kept != "" {
				used[folder+" "+kept] = true
				continue
			}
			t.Errorf("%s:%d: %s: %q is for people, choose the field's word", name, fset.Position(id.Pos()).Line,
				id.Name, word)
		}
	}
	if files < 1000 {
		t.Errorf("only %d files were read", files)
	}
	for folder, words := range personalNames {
		for word := range words {
			if !used[folder+" "+word] {
				t.Errorf("nothing in %s is named %s any more: shorten the list", folder, word)
			}
		}
	}
}

// keptWord is the exception that allows a word, also in the plural; empty if there is none.
func keptWord(folder, word string) string {
	for kept := range personalNames[folder] {
		if word == kept || word == kept+"s" || word == kept+"es" {
			return kept
		}
	}
	return ""
}

// personalWord is the first word of a name that is for people; empty if there is none.
func personalWord(name string) string {
	name = afterSmallLetter.ReplaceAllString(afterAbbreviation.ReplaceAllString(name, "$1 $2"), "$1 $2")
	for _, w := range strings.FieldsFunc(name, func(r rune) bool { return !unicode.IsLetter(r) }) {
		if w = strings.ToLower(w); personal.MatchString(w) {
			return w
		}
	}
	return ""
}

// declared returns the names that a file declares: of types, functions, fields, parameters, and variables.
func declared(f *ast.File) (out []*ast.Ident) {
	add := func(list ...ast.Expr) {
		for _, e := range list {
			if id, ok := e.(*ast.Ident); ok {
				out = append(out, id)
			}
		}
	}
	ast.Inspect(f, func(n ast.Node) bool {
		switch n := n.(type) {
		case *ast.FuncDecl:
			out = append(out, n.Name)
		case *ast.TypeSpec:
			out = append(out, n.Name)
		case *ast.ValueSpec:
			out = append(out, n.Names...)
		case *ast.Field:
			out = append(out, n.Names...)
		case *ast.AssignStmt:
			if n.Tok == token.DEFINE {
				add(n.Lhs...)
			}
		case *ast.RangeStmt:
			if n.Tok == token.DEFINE {
				add(n.Key, n.Value)
			}
		case *ast.LabeledStmt:
			out = append(out, n.Label)
		}
		return true
	})
	return append(out, f.Name)
}

func TestPersonalNamesAreFound(t *testing.T) {
	const src = `package wishes
type stranger struct{ toldPods int }
func (s stranger) Ask(said string, said2 ...int) (heard bool) {
again:
	for who, says := range "" {
		asked, tasks := says, who
		switch x := any(asked).(type) { default: _, _ = x, tasks }
		continue again
	}
	var HTTPGuest, knewURL, masked, essay, button, storedPromiseOf int
	_, _, _, _, _, _ = HTTPGuest, knewURL, masked, essay, button, storedPromiseOf
	return
}`
	f, err := parser.ParseFile(token.NewFileSet(), "x.go", src, parser.SkipObjectResolution)
	if err != nil {
		t.Fatal(err)
	}
	var got []string
	for _, id := range declared(f) {
		if personalWord(id.Name) != "" {
			got = append(got, id.Name)
		}
	}
	slices.Sort(got)
	want := []string{"Ask", "HTTPGuest", "asked", "heard", "knewURL", "said", "said2", "says", "storedPromiseOf",
		"stranger", "toldPods", "wishes"}
	if !slices.Equal(got, want) {
		t.Errorf("found %v, want %v", got, want)
	}
	for _, c := range []struct{ folder, word, want string }{
		{"internal/core/routing", "guesses", "guess"}, {"internal/core/routing", "greeting", ""},
		{"internal/gateway", "guess", ""},
	} {
		if kept := keptWord(c.folder, c.word); kept != c.want {
			t.Errorf("%s in %s: the exception %q, want %q", c.word, c.folder, kept, c.want)
		}
	}
}
