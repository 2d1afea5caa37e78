// Package language prevents kubectl's translations from being loaded at the start if the user's language is English.
// Package cli imports it for its effect; it must never change a text.
package language

import (
	"os"
	"strings"

	"k8s.io/kubectl/pkg/util/i18n"
)

// kubectl translates the texts of its commands while its packages initialise
// themselves. To load the translations takes a third of the start of every carob
// process, and the English ones are the texts that the program holds anyway.
func init() {
	if err := i18n.SetLoadTranslationsFunc(load); err != nil {
		panic("package language is initialised too late: " + err.Error())
	}
}

func load() error {
	if english(os.Getenv) {
		return nil
	}
	return i18n.LoadTranslations("kubectl", nil)
}

// english reports whether the environment selects no other language, by the rules of gettext: the first variable that
// is set decides.
func english(getenv func(string) string) bool {
	for _, name := range []string{"LC_ALL", "LC_MESSAGES", "LANG"} {
		if v := getenv(name); v != "" {
			language, _, _ := strings.Cut(v, ".")
			return language == "C" || language == "POSIX" || strings.HasPrefix(language, "en")
		}
	}
	return true
}
