"""What a decoder knows beside the audio: phrases to boost, language models, and the language that a text is kept to."""
