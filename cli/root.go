package cli

import "github.com/spf13/cobra"

// Root has all commands, as Run makes them: for whoever writes about them.
func Root(streams Streams) *cobra.Command { return rootCommand(newApp(streams)) }
